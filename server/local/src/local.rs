//! The provider: finds and makes sandboxes, and hands what is to be done to the task that looks after each.

mod create;
mod open;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sandgate_errors::Refusal;
use sandgate_proto::v1::{ErrorReason, Sandbox, SandboxState, Usage};
use sandgate_provider::{Begun, Change, Link, Name, NewSandbox, Provider, Removed, Table};
use tokio::{sync::oneshot, task, time, time::Instant};

use crate::{
    shared::{Shared, internal, not_found},
    slot::{Answer, Command, News, Slot},
};

pub use self::open::OpenError;

/// What made a sandbox, as callers see it.
pub(crate) const NAME: &str = "local";
/// How long tasks have to finish what they are at, when the server ends.
const LAST_WORK: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Sandboxes on this machine.
#[derive(Debug)]
pub struct Local {
    shared: Arc<Shared>,
}

// === impl Local ===

impl Local {
    /// Lets go of everything and leaves the sandboxes alone. What was begun is finished, for a few seconds.
    pub async fn close(&self) {
        self.shared.closing.send_replace(true);
        let mut actors = self.shared.actors.subscribe();
        let _ = time::timeout(LAST_WORK, actors.wait_for(|count| *count == 0)).await;
        self.shared.cgroups.remove();
    }

    /// Asks the task of a sandbox. `None`: the sandbox is gone.
    async fn ask<T>(&self, slot: &Slot, command: impl FnOnce(Answer<T>) -> Command) -> Option<Result<T, Refusal>> {
        let (answer, answered) = oneshot::channel();
        self.shared.send(slot, command(answer)).await?;
        answered.await.ok()
    }

    /// Why a task does not answer.
    fn unanswered(&self, name: &Name) -> Refusal {
        if self.shared.is_closing() {
            stopping()
        } else {
            not_found(name)
        }
    }
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        NAME
    }

    fn table(&self) -> &Arc<Table> {
        &self.shared.table
    }

    async fn create(&self, wanted: NewSandbox) -> Result<Begun, Refusal> {
        let asked = Instant::now();
        let shared = Arc::clone(&self.shared);
        // On its own, so that it goes on when the caller leaves.
        let created = task::spawn(async move { shared.create(wanted, asked).await });
        created.await.unwrap_or_else(|error| Err(internal(error.to_string())))
    }

    async fn ready(&self, name: &Name, uid: &str) -> Result<Arc<Sandbox>, Refusal> {
        let Some(slot) = self.shared.slot(name).filter(|slot| slot.uid == uid) else {
            let refusal = self.shared.slots().refusal(uid);
            return Err(refusal.unwrap_or_else(|| not_found(name)));
        };
        let mut news = slot.news.subscribe();
        loop {
            let now = *news.borrow_and_update();
            if let Some(done) = self.shared.readiness(&slot, now) {
                return done;
            }
            if news.changed().await.is_err() {
                return Err(not_found(name));
            }
        }
    }

    async fn resume(&self, name: &Name) -> Result<Begun, Refusal> {
        let slot = self.shared.slot(name).ok_or_else(|| not_found(name))?;
        self.shared.resume(&slot).await.ok_or_else(|| self.unanswered(name))
    }

    async fn suspend(&self, name: &Name, incarnation: Option<&str>, grace: Duration) -> Result<Arc<Sandbox>, Refusal> {
        let slot = self.shared.slot(name).ok_or_else(|| not_found(name))?;
        let incarnation = incarnation.map(str::to_owned);
        let asked = self.ask(&slot, |answer| Command::Suspend {
            incarnation,
            grace,
            answer,
        });
        asked.await.unwrap_or_else(|| Err(self.unanswered(name)))
    }

    async fn update(&self, name: &Name, change: Change) -> Result<Arc<Sandbox>, Refusal> {
        let slot = self.shared.slot(name).ok_or_else(|| not_found(name))?;
        let change = Box::new(change);
        let asked = self.ask(&slot, |answer| Command::Update { change, answer });
        asked.await.unwrap_or_else(|| Err(self.unanswered(name)))
    }

    async fn delete(&self, name: &Name, uid: Option<&str>, grace: Option<Duration>) -> Result<Removed, Refusal> {
        let slot = self.shared.slot(name);
        let Some(slot) = slot.filter(|slot| uid.is_none_or(|uid| slot.uid == uid)) else {
            return Ok(Removed::default());
        };
        match self.ask(&slot, |answer| Command::Delete { grace, answer }).await {
            Some(done) => done,
            None if self.shared.is_closing() => Err(self.unanswered(name)),
            // Another one was quicker.
            None => Ok(Removed::default()),
        }
    }

    async fn usage(&self, name: &Name) -> Result<Usage, Refusal> {
        let slot = self.shared.slot(name).ok_or_else(|| not_found(name))?;
        let (gauge, dir) = (slot.gauge(), slot.place.get());
        let measured = task::spawn_blocking(move || gauge.measure(&dir)).await;
        measured.map_err(|error| internal(error.to_string()))
    }

    fn link(&self, name: &Name) -> Result<(Arc<Sandbox>, Link), Refusal> {
        let slot = self.shared.slot(name).ok_or_else(|| not_found(name))?;
        let sandbox = self.shared.table.get(name.as_str()).ok_or_else(|| not_found(name))?;
        match sandbox.state() {
            SandboxState::Ready => Ok((sandbox, slot.link())),
            SandboxState::Suspended | SandboxState::Suspending => Err(is_suspended(name)),
            SandboxState::Failed => Err(has_failed(&sandbox)),
            SandboxState::Deleting => Err(not_found(name)),
            _ => {
                let message = format!("sandbox {name} is being started; try again in a moment");
                Err(Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER))
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Puts a command into a sandbox's queue. `None`: the sandbox is gone.
    async fn send(&self, slot: &Slot, command: Command) -> Option<()> {
        let place = slot.queue.reserve().await.ok()?;
        // Both at once: a caller that leaves must not be counted without being queued.
        slot.tell(|news| news.queued(&command));
        place.send(command);
        Some(())
    }

    /// Whether a sandbox is READY, or why it will not be. `None`: that is not known yet.
    fn readiness(&self, slot: &Slot, news: News) -> Option<Result<Arc<Sandbox>, Refusal>> {
        let known = self.table.get(slot.name.as_str());
        let Some(sandbox) = known.filter(|known| known.uid == slot.uid) else {
            return Some(Err(slot.refusal().unwrap_or_else(|| not_found(&slot.name))));
        };
        match sandbox.state() {
            SandboxState::Ready if news.stays() => Some(Ok(sandbox)),
            SandboxState::Failed => Some(Err(has_failed(&sandbox))),
            SandboxState::Suspended | SandboxState::Suspending if !news.will_start() => {
                Some(Err(slot.refusal().unwrap_or_else(|| is_suspended(&slot.name))))
            }
            _ if self.is_closing() => Some(Err(stopping())),
            _ => None,
        }
    }

    /// Sees to it that a sandbox runs in the end. `None`: it is gone.
    async fn resume(&self, slot: &Slot) -> Option<Begun> {
        let state = || self.table.get(slot.name.as_str()).filter(|known| known.uid == slot.uid);
        let news = *slot.news.subscribe().wait_for(News::is_known).await.ok()?;
        let sandbox = state().filter(|_| !news.leaving())?;
        let resumed = news.needs_start(sandbox.state());
        if resumed {
            let (begun, has_begun) = oneshot::channel();
            let at_once = sandbox.state() == SandboxState::Suspended && news.stays();
            self.send(slot, Command::Start { begun }).await?;
            if at_once {
                let _ = has_begun.await;
            }
        }
        Some(Begun {
            sandbox: state().unwrap_or(sandbox),
            created: false,
            resumed,
        })
    }
}

pub(super) fn stopping() -> Refusal {
    Refusal::new(ErrorReason::Stopping, "the server is stopping; what was begun goes on")
}

fn is_suspended(name: &Name) -> Refusal {
    let message = format!("sandbox {name} is suspended; resume it, or ask for auto_resume");
    Refusal::new(ErrorReason::SandboxSuspended, message)
}

fn has_failed(sandbox: &Sandbox) -> Refusal {
    Refusal::new(ErrorReason::SandboxFailed, &sandbox.state_message)
}
