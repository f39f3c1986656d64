//! Does to a sandbox what the plan says, and holds what comes of it against what must be true.

#[path = "acts/files.rs"]
mod files;
#[path = "acts/life.rs"]
mod life;
#[path = "acts/work.rs"]
mod work;

use std::{
    collections::{BTreeMap, HashSet},
    path::PathBuf,
    time::Duration,
};

use sandgate::{Client, Error, Sandbox, v1::ErrorReason};
use sandgate_tests::told::Told;
use tokio::{
    task::JoinHandle,
    time::{self, Instant},
};

use crate::{
    place::Place,
    plan::{Step, Wake},
};

/// How long the contract's own retries go on; here for calls that the client library leaves to its callers.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(30);

/// What is the same for all.
#[derive(Clone, Debug)]
pub(crate) struct Around {
    /// Borne by every process that is started in a sandbox.
    pub(crate) mark: String,
    pub(crate) state_dir: PathBuf,
    /// Sandboxes end by themselves should the test be killed.
    pub(crate) ttl: Duration,
}

/// What was learnt of a sandbox, and can't be known beforehand.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    uid: String,
    incarnation: String,
    /// All that there ever were, with the current ones.
    uids: HashSet<String>,
    incarnations: HashSet<String>,
    /// Of running commands, by id.
    followers: BTreeMap<String, Follower>,
}

type Follower = JoinHandle<(Told, Option<Error>)>;

/// A sandbox in the hands of the one client that owns it.
pub(crate) struct Hands<'a> {
    pub(crate) client: &'a Client,
    pub(crate) around: &'a Around,
    /// As it was before the step.
    pub(crate) place: &'a Place,
    pub(crate) facts: &'a mut Facts,
}

// === impl Facts ===

impl Facts {
    /// There is a new sandbox.
    fn born(&mut self, uid: &str, incarnation: &str) {
        assert!(self.uids.insert(uid.to_owned()), "uid {uid} was used before");
        uid.clone_into(&mut self.uid);
        self.woken(incarnation);
    }

    /// There is a new incarnation.
    fn woken(&mut self, incarnation: &str) {
        assert!(!incarnation.is_empty(), "it has no incarnation");
        let new = self.incarnations.insert(incarnation.to_owned());
        assert!(new, "incarnation {incarnation} was there before");
        incarnation.clone_into(&mut self.incarnation);
    }

    /// Some incarnation that has ended.
    fn an_ended_one(&self, is_ready: bool) -> &str {
        let ended = |one: &&String| !is_ready || **one != self.incarnation;
        self.incarnations.iter().find(ended).unwrap()
    }
}

// === impl Hands ===

impl Hands<'_> {
    pub(crate) async fn act(&mut self, step: &Step) {
        let place = self.place;
        match step {
            Step::Create => self.create().await,
            Step::Find => self.find().await,
            Step::Miss => self.miss().await,
            Step::Run(job) => self.run(job).await,
            Step::Stream(job) => self.stream(job).await,
            Step::Start { job, followed } => self.start(job, *followed).await,
            Step::Kill(index) => self.kill(&place.running[*index]).await,
            Step::Recall(index) => self.recall(&place.past[*index]).await,
            Step::Upload { path, content } => self.upload(path, *content).await,
            Step::ReadBack(path) => self.read_back(path).await,
            Step::Remove(path) => self.remove(path).await,
            Step::Label(label) => self.label(*label).await,
            Step::Suspend { grace } => self.suspend(*grace).await,
            Step::SuspendAgain => self.suspend_again().await,
            Step::Resume(wake) => {
                match wake {
                    Wake::Resume => self.resume().await,
                    Wake::Attach => self.attach().await,
                    Wake::Create => self.resume_by_create().await,
                    Wake::Run(job) => self.resume_by_run(job).await,
                }
                let job = match wake {
                    Wake::Run(job) => Some(job),
                    _ => None,
                };
                self.check_kept(job).await;
            }
            Step::Refused(job) => self.refused(job).await,
            Step::Stale(job) => self.stale(job).await,
            Step::Delete { grace } => self.delete(*grace).await,
            Step::Audit => self.audit().await,
        }
    }

    fn sandbox(&self) -> Sandbox {
        self.client.sandbox(&self.place.name)
    }
}

/// Makes a call that may be repeated until it is answered.
pub(crate) async fn answered<T, F>(mut call: impl FnMut() -> F) -> sandgate::Result<T>
where
    F: Future<Output = sandgate::Result<T>>,
{
    let begun = Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_unavailable() && begun.elapsed() < PATIENCE => time::sleep(RETRY).await,
            done => return done,
        }
    }
}

/// The reason of a call that must have been refused.
pub(crate) fn refusal<T: std::fmt::Debug>(outcome: sandgate::Result<T>) -> ErrorReason {
    let error = outcome.unwrap_err();
    error.reason().unwrap_or_else(|| panic!("no reason in {error:?}"))
}
