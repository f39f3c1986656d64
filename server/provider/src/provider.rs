//! The trait that every provider implements, with its promises.

use std::{
    collections::BTreeMap,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use sandgate_errors::Refusal;
use sandgate_proto::v1::{ConnectionMode, EnvVar, ErrorReason, Sandbox, SandboxState, Usage, Volume};

use crate::{link::Link, name::Name, selector::Selector, table::Table};

/// How long a lost connection waits for word of what became of its sandbox.
const WORD_OF_END: Duration = Duration::from_secs(3);

/// A sandbox that is wanted. Everything in it was checked against the contract, and nothing against the provider.
#[derive(Debug, Clone)]
pub struct NewSandbox {
    /// Its name. One that the server made up, if the caller gave none.
    pub name: Name,
    /// The caller gave no name: nobody else can know of it.
    pub unnamed: bool,
    /// What to make it from. Empty: the default.
    pub template: String,
    /// The caller's words.
    pub labels: BTreeMap<String, String>,
    /// For every exec, after the template's.
    pub env: Vec<EnvVar>,
    /// When it ends.
    pub end: End,
    /// How long it may idle. `None`: as the template says; zero: for ever.
    pub idle_limit: Option<Duration>,
    /// Kubernetes: the pool to take it from.
    pub warm_pool: String,
    /// How to reach it.
    pub connection_mode: ConnectionMode,
    /// Kubernetes: volumes to make.
    pub volumes: Vec<Volume>,
}

/// When a sandbox ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As the template says.
    Default,
    /// This long from now.
    After(Duration),
    /// Then.
    At(SystemTime),
    /// Never, if the provider allows it.
    Never,
}

/// What can be changed about a sandbox. `None` stays as it is.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// When it ends.
    pub end: Option<End>,
    /// How long it may idle; zero: for ever.
    pub idle_limit: Option<Duration>,
    /// All its labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Only if it has this etag.
    pub etag: Option<String>,
}

/// A sandbox on which something has begun.
#[derive(Debug, Clone)]
pub struct Begun {
    /// As it is now.
    pub sandbox: Arc<Sandbox>,
    /// This call made it.
    pub created: bool,
    /// This call resumed it.
    pub resumed: bool,
}

/// What a deletion removed.
#[derive(Debug, Clone, Default)]
pub struct Removed {
    /// Whether there was a sandbox. If not, the rest is empty.
    pub existed: bool,
    /// Its uid.
    pub uid: String,
    /// Its last incarnation.
    pub incarnation: String,
    /// Execs of which a process was alive.
    pub execs_ended: u32,
    /// Bytes freed.
    pub disk_bytes: Option<u64>,
    /// Names of volumes that were removed.
    pub volumes: Vec<String>,
}

/// Makes and finds sandboxes.
///
/// What every provider promises, and the conformance suite checks:
///
/// - **Its memory is where the sandboxes are.** A server that was killed and started again, or another replica, sees the
///   same sandboxes with the same uid, labels, end and idle limit.
/// - **Calls may be repeated.** Create and Resume by name find what an earlier call began. Work that has begun goes on
///   when the future is dropped; nothing is ever half there: after a kill at any point a sandbox is whole or gone.
/// - **Every sandbox has an end** that is kept without the server.
/// - **Incarnations.** Each start of what runs inside has another one, in the table before the sandbox is READY again.
/// - **The table is the truth.** Every change that a caller could see is in [`Provider::table`] before the call that
///   made it answers. A sandbox that can never become READY is FAILED or removed, and `ready` says why.
#[async_trait]
pub trait Provider: fmt::Debug + Send + Sync + 'static {
    /// `local` or `kubernetes`.
    fn name(&self) -> &'static str;

    /// All sandboxes as they are now, and the feed of changes.
    fn table(&self) -> &Arc<Table>;

    /// Begins to make a sandbox, or finds the one of that name; begins to resume it if it is suspended.
    /// Does not wait: see [`Provider::ready`].
    ///
    /// # Errors
    /// SANDBOX_ALREADY_EXISTS if the one of that name was made from something else, TEMPLATE_NOT_FOUND, LIMIT_REACHED,
    /// INVALID_ARGUMENT for what this provider can't do.
    async fn create(&self, wanted: NewSandbox) -> Result<Begun, Refusal>;

    /// Looks for a sandbox that the table does not know: another replica may have made it a moment ago. Tells whether the
    /// table knows it now.
    async fn seek(&self, name: &Name) -> bool {
        self.table().get(name.as_str()).is_some()
    }

    /// Has the table show all sandboxes that match as they are now: other replicas may have made, changed or removed some
    /// a moment ago.
    ///
    /// # Errors
    /// SANDBOX_UNREACHABLE when that can't be known now.
    async fn refresh(&self, _selector: &Selector) -> Result<(), Refusal> {
        Ok(())
    }

    /// Waits until the sandbox is READY. Dropping the future changes nothing.
    ///
    /// # Errors
    /// Why it can never be: the refusal that its making ended with, SANDBOX_NOT_FOUND when it is gone, SANDBOX_SUSPENDED
    /// when it was suspended meanwhile.
    async fn ready(&self, name: &Name, uid: &str) -> Result<Arc<Sandbox>, Refusal>;

    /// Begins to bring a suspended sandbox back. One that is running, or on its way, is left alone.
    ///
    /// # Errors
    /// SANDBOX_NOT_FOUND, SANDBOX_FAILED.
    async fn resume(&self, name: &Name) -> Result<Begun, Refusal>;

    /// Ends every process and keeps the disk. Answers when none is left.
    ///
    /// # Errors
    /// SANDBOX_NOT_FOUND, SANDBOX_RESTARTED if `incarnation` is not the current one.
    async fn suspend(&self, name: &Name, incarnation: Option<&str>, grace: Duration) -> Result<Arc<Sandbox>, Refusal>;

    /// Changes end, idle limit or labels; in force when it answers.
    ///
    /// # Errors
    /// SANDBOX_NOT_FOUND, ETAG_MISMATCH, INVALID_ARGUMENT for what the server's limits forbid.
    async fn update(&self, name: &Name, change: Change) -> Result<Arc<Sandbox>, Refusal>;

    /// Ends every process and removes the sandbox with its disk. Answers when the name is free. That there is none, or
    /// one of another uid, is no error. `grace` of `None` kills at once.
    ///
    /// # Errors
    /// When something can't be removed now; the sandbox is then still there.
    async fn delete(&self, name: &Name, uid: Option<&str>, grace: Option<Duration>) -> Result<Removed, Refusal>;

    /// What it uses now.
    ///
    /// # Errors
    /// SANDBOX_NOT_FOUND. A figure that can't be had is absent, no error.
    async fn usage(&self, name: &Name) -> Result<Usage, Refusal>;

    /// The way to what runs inside. Must be cheap: it is asked for by every call.
    ///
    /// # Errors
    /// SANDBOX_NOT_FOUND, SANDBOX_SUSPENDED, SANDBOX_FAILED, SANDBOX_UNREACHABLE.
    fn link(&self, name: &Name) -> Result<(Arc<Sandbox>, Link), Refusal>;

    /// What became of a sandbox whose connection was lost. `seen` is how the caller knew it.
    async fn lost(&self, seen: &Sandbox) -> Refusal {
        let ended = self.table().wait(WORD_OF_END, |now| {
            now.get(&seen.name).is_none_or(|now| {
                now.uid != seen.uid || now.incarnation != seen.incarnation || now.state() != SandboxState::Ready
            })
        });
        match ended.await.then(|| self.table().get(&seen.name)) {
            None => Refusal::new(
                ErrorReason::SandboxUnreachable,
                format!("sandbox {} can't be reached right now; try again", seen.name),
            ),
            Some(Some(now)) if now.uid == seen.uid => {
                let why = now.last_end.as_ref().map_or("", |end| end.message.as_str());
                let message = format!(
                    "the incarnation of sandbox {} that this call spoke to has ended ({why}); its processes are gone and nothing was run again",
                    seen.name
                );
                Refusal::new(ErrorReason::SandboxRestarted, message).with("incarnation", &seen.incarnation)
            }
            Some(_) => {
                let why = self.table().end_of(&seen.uid).map_or(String::new(), |end| end.message);
                let message = format!("sandbox {} was removed meanwhile ({why})", seen.name);
                Refusal::new(ErrorReason::SandboxNotFound, message)
            }
        }
    }
}
