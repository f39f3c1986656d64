//! Making, finding, changing and ending sandboxes.

use std::{sync::Arc, time::Duration};

use sandgate_errors::Refusal;
use sandgate_proto::v1::{self as pb, ErrorReason, Sandbox, SandboxState};
use sandgate_provider::{Begun, Name, NewSandbox, Provider};
use tokio::time::{self, Instant};
use tracing::{Instrument as _, Span};

use super::{Sandboxes, check, stopping};

/// How often what was undone by others is begun again.
const CROSSINGS: usize = 4;

/// A sandbox without a name of the caller's, of which the caller has not heard yet. Dropped unclaimed, it is removed:
/// nobody could ever find it again.
#[derive(Debug)]
struct Unclaimed {
    provider: Arc<dyn Provider>,
    name: Name,
    uid: String,
    claimed: bool,
}

// === impl Sandboxes ===

impl Sandboxes {
    pub(super) async fn make(&self, request: pb::CreateRequest) -> Result<pb::CreateResponse, Refusal> {
        let wait = check::wait(request.no_wait, request.max_wait)?;
        let wanted = check::wanted(request)?;
        if wanted.unnamed {
            return self.make_unnamed(wanted, wait).await;
        }
        let name = wanted.name.clone();
        let begun = self.begin(&name, wait, || self.provider.create(wanted.clone())).await?;
        Ok(pb::CreateResponse {
            created: begun.created,
            resumed: begun.resumed,
            sandbox: Some(Arc::unwrap_or_clone(begun.sandbox)),
        })
    }

    async fn make_unnamed(&self, wanted: NewSandbox, wait: Duration) -> Result<pb::CreateResponse, Refusal> {
        let name = wanted.name.clone();
        let (mut unclaimed, begun) = Unclaimed::make(Arc::clone(&self.provider), wanted).await?;
        let sandbox = tokio::select! {
            biased;
            sandbox = self.settled(&name, &begun.sandbox, wait) => sandbox?,
            // A refusal would lose the sandbox, for the caller has no name to ask again with.
            () = self.stopping.begun() => self.as_it_is(&begun.sandbox),
        };
        unclaimed.claimed = true;
        Ok(pb::CreateResponse {
            sandbox: Some(Arc::unwrap_or_clone(sandbox)),
            created: begun.created,
            resumed: begun.resumed,
        })
    }

    /// Brings a sandbox back if need be, and waits for it.
    pub(super) async fn bring_back(
        &self,
        name: &str,
        no_wait: bool,
        max_wait: Option<prost_types::Duration>,
    ) -> Result<(Arc<Sandbox>, bool), Refusal> {
        let wait = check::wait(no_wait, max_wait)?;
        let name = Name::parse("sandbox", name)?;
        let begun = self.begin(&name, wait, || self.provider.resume(&name)).await?;
        Ok((begun.sandbox, begun.resumed))
    }

    /// Begins something and waits for it. What another call undoes meanwhile is begun again: they came at once, and this
    /// one may as well have come last.
    pub(super) async fn begin<B>(&self, name: &Name, wait: Duration, begin: impl Fn() -> B) -> Result<Begun, Refusal>
    where
        B: Future<Output = Result<Begun, Refusal>>,
    {
        let until = Instant::now() + wait;
        let (mut created, mut resumed) = (false, false);
        let mut crossings = 0..CROSSINGS;
        loop {
            let begun = tokio::select! {
                biased;
                begun = begin() => begun?,
                () = self.stopping.begun() => return Err(stopping()),
            };
            (created, resumed) = (created || begun.created, resumed || begun.resumed);
            let left = until.saturating_duration_since(Instant::now());
            let settled = tokio::select! {
                biased;
                settled = self.settled(name, &begun.sandbox, left) => settled,
                () = self.stopping.begun() => return Err(stopping()),
            };
            match settled {
                Err(refusal) if is_undone(&refusal, created) && crossings.next().is_some() => {}
                settled => {
                    return settled.map(|sandbox| Begun {
                        sandbox,
                        created,
                        resumed,
                    });
                }
            }
        }
    }

    /// Waits until it is ready, or the wait is over: then it is what it is.
    async fn settled(&self, name: &Name, sandbox: &Arc<Sandbox>, wait: Duration) -> Result<Arc<Sandbox>, Refusal> {
        if wait.is_zero() || sandbox.state() == SandboxState::Ready {
            return Ok(Arc::clone(sandbox));
        }
        match time::timeout(wait, self.provider.ready(name, &sandbox.uid)).await {
            Ok(ready) => ready,
            Err(_) => Ok(self.as_it_is(sandbox)),
        }
    }

    fn as_it_is(&self, sandbox: &Arc<Sandbox>) -> Arc<Sandbox> {
        let now = self.provider.table().get(&sandbox.name);
        now.filter(|now| now.uid == sandbox.uid)
            .unwrap_or_else(|| Arc::clone(sandbox))
    }

    pub(super) async fn one(&self, request: &pb::GetRequest) -> Result<Sandbox, Refusal> {
        let name = Name::parse("sandbox", &request.sandbox)?;
        if self.provider.table().get(name.as_str()).is_none() {
            self.provider.seek(&name).await;
        }
        let sandbox = self.provider.table().get(name.as_str()).ok_or_else(|| {
            let message = format!("there is no sandbox {name}");
            Refusal::new(ErrorReason::SandboxNotFound, message)
        })?;
        let mut sandbox = Arc::unwrap_or_clone(sandbox);
        if sandbox.state() == SandboxState::Ready {
            // What can't be measured right now is absent. The sandbox is still worth telling of.
            sandbox.usage = self.provider.usage(&name).await.ok();
        }
        Ok(sandbox)
    }

    pub(super) async fn change(&self, request: pb::UpdateRequest) -> Result<Arc<Sandbox>, Refusal> {
        let name = Name::parse("sandbox", &request.sandbox)?;
        let change = check::change(request.update_mask, request.settings, request.etag)?;
        self.provider.update(&name, change).await
    }

    pub(super) async fn put_to_sleep(&self, request: pb::SuspendRequest) -> Result<Arc<Sandbox>, Refusal> {
        let name = Name::parse("sandbox", &request.sandbox)?;
        let grace = check::suspend_grace(request.grace)?;
        let expected = Some(request.expected_incarnation.as_str()).filter(|expected| !expected.is_empty());
        self.provider.suspend(&name, expected, grace).await
    }

    pub(super) async fn remove(&self, request: pb::DeleteRequest) -> Result<pb::DeleteResponse, Refusal> {
        let name = Name::parse("sandbox", &request.sandbox)?;
        let grace = check::grace(request.grace)?;
        let expected = Some(request.expected_uid.as_str()).filter(|expected| !expected.is_empty());
        let removed = self.provider.delete(&name, expected, grace).await?;
        Ok(pb::DeleteResponse {
            existed: removed.existed,
            uid: removed.uid,
            incarnation: removed.incarnation,
            execs_ended: removed.execs_ended,
            disk_bytes: removed.disk_bytes,
            volumes: removed.volumes,
        })
    }
}

/// Whether another call has suspended what this one wanted to run, or removed what this one found.
fn is_undone(refusal: &Refusal, created: bool) -> bool {
    match refusal.reason {
        ErrorReason::SandboxSuspended => true,
        ErrorReason::SandboxNotFound => !created,
        _ => false,
    }
}

// === impl Unclaimed ===

impl Unclaimed {
    /// Makes it in a task of its own: a caller that leaves in the middle drops the task's outcome, and with it the guard.
    async fn make(provider: Arc<dyn Provider>, wanted: NewSandbox) -> Result<(Self, Begun), Refusal> {
        let making = async move {
            let name = wanted.name.clone();
            let begun = provider.create(wanted).await?;
            let uid = begun.sandbox.uid.clone();
            let unclaimed = Self {
                provider,
                name,
                uid,
                claimed: false,
            };
            Ok((unclaimed, begun))
        };
        let made = tokio::spawn(making.instrument(Span::current())).await;
        made.unwrap_or_else(|error| {
            let message = format!("making the sandbox failed: {error}");
            Err(Refusal::new(ErrorReason::Internal, message))
        })
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        // Without a runtime the server is ending. The sandbox then lasts until its own deadline or idle limit.
        let Some(runtime) = (!self.claimed)
            .then(tokio::runtime::Handle::try_current)
            .and_then(Result::ok)
        else {
            return;
        };
        let (provider, name, uid) = (Arc::clone(&self.provider), self.name.clone(), self.uid.clone());
        let removing = async move {
            match provider.delete(&name, Some(&uid), None).await {
                Ok(_) => tracing::info!(sandbox = %name, "removed a sandbox whose creator left"),
                Err(refusal) => {
                    tracing::warn!(sandbox = %name, %refusal, "can't remove a sandbox whose creator left");
                }
            }
        };
        runtime.spawn(removing.instrument(Span::current()));
    }
}
