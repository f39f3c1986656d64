//! What all parts of the provider work with.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use sandgate_auth::Signer;
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;
use sandgate_provider::{Name, Table};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    api::{Claim, Resources, SandboxObject},
    dial::Modes,
    driver::Drivers,
    memo::{MEMO, Memo},
    reach::Reach,
    settings::Settings,
    world::{Key, World},
};

/// How often a change is tried again that another writer was quicker with.
const ATTEMPTS: usize = 8;
/// How long the watch may be behind a refusal that says that it is.
const NEWS: Duration = Duration::from_secs(2);
/// How long a change waits for the first start of what it changes.
const FIRST_START: Duration = Duration::from_secs(60);
/// When to try again what the cluster could not do now.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What all parts of the provider work with.
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) resources: Resources,
    pub(crate) settings: Settings,
    pub(crate) signer: Option<Arc<Signer>>,
    pub(crate) modes: Modes,
    pub(crate) drivers: Drivers,
    pub(crate) world: Arc<World>,
    /// The ways to what runs inside, by claim.
    pub(crate) links: Mutex<HashMap<Key, Reach>>,
    /// Uids of sandboxes that a task of this server brings up right now.
    pub(crate) births: Mutex<HashSet<String>>,
    /// Held while a pool is made: many who need the same one at once make it once.
    pub(crate) pool_maker: tokio::sync::Mutex<()>,
    /// When sandboxes were used whose idle limit the servers keep.
    pub(crate) uses: Mutex<HashMap<Key, Use>>,
    pub(crate) closing: watch::Sender<bool>,
}

/// When a sandbox was used, in milliseconds since 1970, and its lease renewed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Use {
    pub(crate) used_ms: u64,
    pub(crate) renewed_ms: u64,
}

/// Why a change of a claim was not made.
#[derive(Debug)]
pub(crate) enum NotChanged {
    /// There is no such claim any more.
    Gone,
    Refused(Refusal),
}

// === impl Shared ===

impl Shared {
    pub(crate) fn table(&self) -> &Arc<Table> {
        self.world.table()
    }

    pub(crate) fn claims(&self, namespace: &str) -> Api<Claim> {
        Api::namespaced_with(self.client.clone(), namespace, &self.resources.claims)
    }

    pub(crate) fn sandboxes(&self, namespace: &str) -> Api<SandboxObject> {
        Api::namespaced_with(self.client.clone(), namespace, &self.resources.sandboxes)
    }

    pub(crate) fn links(&self) -> MutexGuard<'_, HashMap<Key, Reach>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn births(&self) -> MutexGuard<'_, HashSet<String>> {
        self.births.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn uses(&self) -> MutexGuard<'_, HashMap<Key, Use>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until something changes that callers could see, at most for `span`.
    pub(crate) async fn news(&self, ticks: &mut watch::Receiver<u64>, span: Duration) {
        let _ = tokio::time::timeout(span, ticks.changed()).await;
    }

    /// Changes what is remembered of a sandbox, and with it the claim. `change` gets the memo, and answers with a merge
    /// patch of the claim beside it, or `None` if nothing is to be done. It is asked again when another writer was
    /// quicker.
    pub(crate) async fn revise(
        &self,
        key: &Key,
        uid: &str,
        change: impl FnMut(&Claim, &mut Memo) -> Result<Option<Value>, Refusal>,
    ) -> Result<(), NotChanged> {
        self.revise_as(false, key, uid, change).await
    }

    /// The same for the server that made the claim, which is its only writer until it was started: the controller that
    /// writes beside it would only make us do it again, while a caller waits.
    pub(crate) async fn revise_as(
        &self,
        maker: bool,
        key: &Key,
        uid: &str,
        mut change: impl FnMut(&Claim, &mut Memo) -> Result<Option<Value>, Refusal>,
    ) -> Result<(), NotChanged> {
        let api = self.claims(&key.namespace);
        for _ in 0..ATTEMPTS {
            let known = self
                .world
                .look(key, |_, entry| (Arc::clone(&entry.claim), entry.memo.clone()));
            let (claim, mut memo) = known.ok_or(NotChanged::Gone)?;
            if claim.metadata.uid.as_deref() != Some(uid) {
                return Err(NotChanged::Gone);
            }
            let only_writer = maker && memo.started.is_none();
            let Some(mut patch) = change(&claim, &mut memo).map_err(NotChanged::Refused)? else {
                return Ok(());
            };
            patch["metadata"]["uid"] = json!(uid);
            if !only_writer {
                patch["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
            }
            patch["metadata"]["annotations"][MEMO] = json!(memo.to_json());
            match api
                .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                Ok(changed) => {
                    self.world.put_claim(changed);
                    return Ok(());
                }
                Err(error) if is_gone(&error) => return Err(NotChanged::Gone),
                Err(error) if is_conflict(&error) => self.catch_up(key, &claim).await?,
                Err(error) => return Err(NotChanged::Refused(failed("the claim can't be changed", &error))),
            }
        }
        let message = "the claim is changed by others again and again";
        Err(NotChanged::Refused(
            Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER),
        ))
    }

    /// Waits until a sandbox was started once: before that its memo is only written by whoever brings it up.
    pub(crate) async fn once_started(&self, key: &Key) {
        let mut ticks = self.table().ticks();
        let until = tokio::time::Instant::now() + FIRST_START;
        let is_new = || {
            let new = self.world.look(key, |_, entry| {
                entry.memo.started.is_none() && entry.claim.metadata.deletion_timestamp.is_none()
            });
            new.unwrap_or(false)
        };
        while is_new() && tokio::time::Instant::now() < until {
            self.news(&mut ticks, Duration::from_millis(200)).await;
        }
    }

    /// Waits until the watch shows a later state of a claim than `seen`; asks for it if it takes long.
    async fn catch_up(&self, key: &Key, seen: &Claim) -> Result<(), NotChanged> {
        let mut ticks = self.table().ticks();
        let version = |claim: &Claim| claim.metadata.resource_version.clone();
        let newer = |world: &World| {
            world
                .look(key, |_, entry| version(&entry.claim) != version(seen))
                .unwrap_or(true)
        };
        let until = tokio::time::Instant::now() + NEWS;
        // Not every change is one that callers could see, so there is not always a tick.
        while !newer(&self.world) {
            if tokio::time::Instant::now() >= until {
                return self.reread(key).await.map_err(NotChanged::Refused);
            }
            self.news(&mut ticks, Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Reads a claim anew, of which the watch may not have told yet.
    pub(crate) async fn reread(&self, key: &Key) -> Result<(), Refusal> {
        let known = self.world.look(key, |_, entry| entry.uid().to_owned());
        let there = self.claims(&key.namespace).get_opt(&key.name).await;
        let there = there.map_err(|error| failed("the claim can't be read", &error))?;
        match there.filter(|claim| Memo::of(claim).is_some()) {
            Some(claim) => self.world.put_claim(claim),
            None => known.iter().for_each(|uid| self.world.drop_claim(key, Some(uid))),
        }
        Ok(())
    }

    /// The claim of a sandbox: as this server knows it, or as the API server does, which another replica may have told
    /// first.
    pub(crate) async fn seek(&self, name: &Name) -> Option<Key> {
        if let Some(key) = self.world.find(name) {
            return Some(key);
        }
        for namespace in &self.settings.namespaces {
            let found = self.claims(namespace).get_opt(name.as_str()).await;
            if let Ok(Some(claim)) = found
                && Memo::of(&claim).is_some()
                && claim.metadata.deletion_timestamp.is_none()
            {
                self.world.put_claim(claim);
            }
        }
        self.world.find(name)
    }

    /// The place of a claim, for what is sealed to it.
    pub(crate) fn place(key: &Key) -> String {
        key.to_string()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

// === impl NotChanged ===

impl NotChanged {
    pub(crate) fn refusal(self, name: &Name) -> Refusal {
        match self {
            Self::Gone => not_found(name),
            Self::Refused(refusal) => refusal,
        }
    }
}

pub(crate) fn not_found(name: impl fmt::Display) -> Refusal {
    Refusal::new(ErrorReason::SandboxNotFound, format!("there is no sandbox {name}"))
}

pub(crate) fn stopping() -> Refusal {
    Refusal::new(ErrorReason::Stopping, "the server is stopping; what was begun goes on")
}

pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

pub(crate) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// What a caller is told when the API server refuses or does not answer.
pub(crate) fn failed(what: &str, error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota") => {
            let message = format!("{what}: the namespace's quota is used up ({})", status.message);
            Refusal::new(ErrorReason::LimitReached, message).with_retry_after(RETRY_AFTER)
        }
        kube::Error::Api(status) if status.code == 403 => Refusal::new(
            ErrorReason::Internal,
            format!("{what}: the server may not do that here ({})", status.message),
        ),
        kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429 => {
            Refusal::new(ErrorReason::SandboxFailed, format!("{what}: {}", status.message))
        }
        other => {
            let message = format!("{what}: the API server does not answer as it should ({other}); try again");
            Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{
        memo::Started,
        testing::{claim, claim_object, provider, refusal},
    };

    fn started() -> Memo {
        Memo {
            started: Some(Started::default()),
            ..Memo::default()
        }
    }

    fn note_idle(_: &Claim, memo: &mut Memo) -> Result<Option<Value>, Refusal> {
        memo.idle_ms = Some(7);
        Ok(Some(json!({})))
    }

    #[tokio::test]
    async fn a_change_that_came_second_is_made_on_what_came_first() {
        let first = AtomicU32::new(0);
        let theirs = Memo {
            deadline_ms: Some(9),
            ..started()
        };
        let later = claim("a", "u", 6, &theirs);
        let (shared, log) =
            provider(
                move |asked| match (asked.method.as_str(), first.fetch_add(1, Ordering::Relaxed)) {
                    ("PATCH", 0) => refusal(409),
                    ("GET", _) => (200, later.clone()),
                    (_, _) => {
                        let memo = asked.body["metadata"]["annotations"][MEMO].as_str().unwrap();
                        (200, claim("a", "u", 7, &serde_json::from_str(memo).unwrap()))
                    }
                },
            );
        shared.world.put_claim(claim_object(&claim("a", "u", 5, &started())));
        let key = Key::new("ns", "a");
        shared.revise(&key, "u", note_idle).await.unwrap();
        let memo = shared.world.look(&key, |_, entry| entry.memo.clone()).unwrap();
        assert_eq!((memo.idle_ms, memo.deadline_ms), (Some(7), Some(9)), "nothing is lost");
        let patches: Vec<_> = log
            .lock()
            .unwrap()
            .iter()
            .filter(|asked| asked.method == "PATCH")
            .cloned()
            .collect();
        let versions: Vec<_> = patches
            .iter()
            .map(|asked| asked.body["metadata"]["resourceVersion"].clone())
            .collect();
        assert_eq!(versions, ["5", "6"]);
        assert!(patches.iter().all(|asked| asked.body["metadata"]["uid"] == "u"));
    }

    #[tokio::test]
    async fn a_claim_of_another_uid_is_never_changed() {
        let (shared, log) = provider(|_| refusal(404));
        shared.world.put_claim(claim_object(&claim("a", "u", 5, &started())));
        let key = Key::new("ns", "a");
        let other = shared.revise(&key, "other", note_idle).await;
        assert!(matches!(other, Err(NotChanged::Gone)), "{other:?}");
        assert!(log.lock().unwrap().is_empty());
        let gone = shared.revise(&key, "u", note_idle).await;
        assert!(matches!(gone, Err(NotChanged::Gone)), "{gone:?}");
    }
}
