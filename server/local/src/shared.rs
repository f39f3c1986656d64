//! What all sandboxes of the provider share.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandgate_errors::Refusal;
use sandgate_monitor::{Root, control::Boot};
use sandgate_proto::v1::ErrorReason;
use sandgate_provider::{Name, Table};
use tokio::sync::{Semaphore, watch};

use crate::{
    cgroups::Cgroups,
    ranges::Ranges,
    settings::Settings,
    slot::{Slot, Slots},
    spawner::Spawner,
    store::Store,
};

/// When to come back, after there was no room.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(2);

/// What all sandboxes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) spawner: Spawner,
    pub(crate) table: Arc<Table>,
    pub(crate) cgroups: Cgroups,
    /// `None`: we are not root, and have no uids to give.
    pub(crate) ranges: Option<Arc<Ranges>>,
    /// What the files of each template's sandboxes are.
    pub(crate) roots: BTreeMap<String, Root>,
    /// One permit for each sandbox that is not suspended.
    pub(crate) live: Arc<Semaphore>,
    /// Monitors that may be started at once for sandboxes that have lost theirs.
    pub(crate) restarts: Semaphore,
    /// This boot of the machine.
    pub(crate) boot_id: String,
    /// The server ends.
    pub(crate) closing: watch::Sender<bool>,
    /// Tasks that look after a sandbox.
    pub(crate) actors: watch::Sender<usize>,
    pub(crate) slots: Mutex<Slots>,
}

/// Counts a task for as long as it lives.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Shared>);

// === impl Shared ===

impl Shared {
    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slot(&self, name: &Name) -> Option<Arc<Slot>> {
        self.slots().by_name.get(name).cloned()
    }

    /// How to start what runs inside.
    pub(crate) fn boot(&self) -> Boot {
        let alive = self.settings.limits.execs_per_sandbox;
        let args = ["--max-alive", &alive.to_string(), "--log", "warn"];
        Boot {
            runtime: self.settings.runtime_bin.clone(),
            runtime_args: args.map(str::to_owned).to_vec(),
            cgroups: self.cgroups.parents(),
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    pub(crate) fn count(self: &Arc<Self>) -> Counted {
        self.actors.send_modify(|count| *count += 1);
        Counted(Arc::clone(self))
    }
}

// === impl Counted ===

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.actors.send_modify(|count| *count -= 1);
    }
}

/// A word that nobody else has.
pub(crate) fn unique() -> Result<String, Refusal> {
    sandgate_monitor::unique().map_err(|error| internal(format!("no random numbers: {error}")))
}

pub(crate) fn internal(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorReason::Internal, message)
}

pub(crate) fn not_found(name: &Name) -> Refusal {
    Refusal::new(ErrorReason::SandboxNotFound, format!("there is no sandbox {name}"))
}
