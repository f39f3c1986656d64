//! All execs of a sandbox: each id once, for the sandbox's life.

mod end;
mod recover;
mod start;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandgate_errors::Refusal;
use sandgate_files::Defaults;
use sandgate_output::Store;
use sandgate_proto::{runtime::v1::ExecSpec, v1::ErrorReason};
use sandgate_sys::Counters;
use tokio::sync::{Notify, Semaphore, watch};

use crate::{
    exec::Exec,
    id::{Digest, check_id, digest},
    journal::Journal,
    launch::{Awaits, Launcher},
    settings::Settings,
    spec::{Env, Fingerprint, Spec, command_line, fingerprint},
    task,
};

/// All execs of a sandbox.
#[derive(Clone)]
pub struct Execs(Arc<Inner>);

struct Inner {
    launcher: Launcher,
    store: Store,
    journal: Journal,
    counters: Arc<Counters>,
    key: Vec<u8>,
    table: Mutex<Table>,
    /// Programs are started a few at a time: more would only wait for each other in the kernel.
    starts: Semaphore,
    /// How many execs have a process alive.
    alive: watch::Sender<usize>,
    /// An exec has come: there will be something to sweep.
    stirred: Notify,
}

#[derive(Default)]
struct Table {
    execs: HashMap<String, Arc<Exec>>,
    /// Ids in the order of their start.
    order: VecDeque<String>,
    /// How many were ever started.
    count: u64,
    /// Ids whose records were dropped.
    spent: HashSet<Digest>,
    free_slots: Vec<usize>,
    /// How many are about to run, or be refused.
    starting: usize,
    env: Env,
    stopping: bool,
}

const STARTS_AT_ONCE: usize = 4;
/// Kept of each stream's start when older output is dropped, for budgets.
const HEAD_BYTES: u64 = 1 << 20;
const SWEEP: Duration = Duration::from_secs(5);

// === impl Execs ===

impl Execs {
    /// Takes over the state directory: what an earlier runtime left there ends as lost.
    ///
    /// # Errors
    /// When the state directory or the cgroups can't be used.
    pub async fn open(settings: Settings) -> io::Result<Self> {
        // First of all: a thread that is started before would take the signals away.
        let ended = sandgate_sys::child_signals()?;
        let inner = recover::open(settings)?;
        inner.launcher.children.reap_orphans(ended)?;
        let execs = Self(Arc::new(inner));
        let sweeper = execs.clone();
        task::spawn("drop old records", "", async move {
            loop {
                // A sandbox that only waits for a command costs nothing: of those there are many.
                if let Some(quiet) = sweeper.quiet_for() {
                    let _ = tokio::time::timeout(quiet, sweeper.0.stirred.notified()).await;
                }
                tokio::time::sleep(SWEEP).await;
                sweeper.drop_old().await;
                sweeper.0.launcher.rest().await;
            }
        });
        Ok(execs)
    }

    /// Starts an exec, or finds it if it was started before with the same request. Answers whether this call started it.
    /// It runs to its end whatever becomes of the caller.
    ///
    /// # Errors
    /// `EXEC_ALREADY_EXISTS`, `EXEC_EXPIRED`, `LIMIT_REACHED`, `INVALID_ARGUMENT`, `DISK_FULL`.
    pub async fn start(&self, id: &str, spec: ExecSpec) -> Result<(Arc<Exec>, bool), Refusal> {
        let (exec, started, ()) = self.start_attached(id, spec, Awaits::Start, |_| ()).await?;
        Ok((exec, started))
    }

    /// As `start`; `attach` is called before the program can have written anything, if this call starts it.
    ///
    /// # Errors
    /// As `start`.
    pub async fn start_attached<T>(
        &self,
        id: &str,
        spec: ExecSpec,
        awaits: Awaits,
        attach: impl FnOnce(&Arc<Exec>) -> T,
    ) -> Result<(Arc<Exec>, bool, T), Refusal> {
        check_id("exec_id", id)?;
        let mark = fingerprint(&spec, &self.0.key);
        let found = self.table().find_same(id, &mark)?;
        let inserted = match found {
            Some(exec) => Inserted::Found(exec),
            None => {
                let command = command_line(&spec);
                let spec = Spec::check(spec, &self.0.launcher.settings)?;
                self.insert(id, mark, command, spec)?
            }
        };
        let (exec, spec, slot) = match inserted {
            Inserted::Found(exec) => {
                let attached = attach(&exec);
                exec.settled().await?;
                return Ok((exec, false, attached));
            }
            Inserted::New(exec, spec, slot) => (exec, spec, slot),
        };
        let attached = attach(&exec);
        // In a task of its own: a caller that goes away must not leave it half started.
        let (execs, starting) = (self.clone(), exec.clone());
        let begun = task::spawn("start", id, async move {
            let begun = execs.begin(&starting, *spec, slot, awaits).await;
            execs.table().starting -= 1;
            begun
        });
        match begun.await {
            Ok(Ok(())) => Ok((exec, true, attached)),
            Ok(Err(refusal)) => Err(refusal),
            Err(error) => Err(Refusal::new(ErrorReason::Internal, error.to_string())),
        }
    }

    /// Finds an exec.
    ///
    /// # Errors
    /// `EXEC_NOT_FOUND`, `EXEC_EXPIRED`.
    pub fn get(&self, id: &str) -> Result<Arc<Exec>, Refusal> {
        check_id("exec_id", id)?;
        let table = self.table();
        if table.spent.contains(&digest(id)) {
            return Err(expired(id));
        }
        let missing = || Refusal::new(ErrorReason::ExecNotFound, format!("there is no exec {id}"));
        table.execs.get(id).cloned().ok_or_else(missing)
    }

    /// All execs whose records are kept, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Exec>> {
        let table = self.table();
        table
            .order
            .iter()
            .filter_map(|id| table.execs.get(id).cloned())
            .collect()
    }

    /// How many execs have a process alive, now and whenever it changes.
    #[must_use]
    pub fn alive(&self) -> watch::Receiver<usize> {
        self.0.alive.subscribe()
    }

    /// Whether process trees are held by cgroups.
    #[must_use]
    pub fn has_cgroups(&self) -> bool {
        self.0.launcher.roots.is_some()
    }

    /// Sets the environment that later execs get beside their own.
    pub fn set_env(&self, env: Env) {
        self.table().env = env;
    }

    fn defaults(&self) -> Defaults {
        let settings = &self.0.launcher.settings;
        Defaults {
            user: settings.user.clone(),
            cwd: settings.cwd.clone(),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Table ===

impl Table {
    fn find_same(&self, id: &str, mark: &Fingerprint) -> Result<Option<Arc<Exec>>, Refusal> {
        if !self.spent.is_empty() && self.spent.contains(&digest(id)) {
            return Err(expired(id));
        }
        match self.execs.get(id) {
            Some(exec) if exec.fingerprint == *mark => Ok(Some(exec.clone())),
            Some(_) => {
                let message = format!("exec {id} was started with a different request");
                Err(Refusal::new(ErrorReason::ExecAlreadyExists, message))
            }
            None => Ok(None),
        }
    }
}

enum Inserted {
    New(Arc<Exec>, Box<Spec>, usize),
    Found(Arc<Exec>),
}

fn expired(id: &str) -> Refusal {
    let message = format!("exec {id} ran and its record is no longer kept; it is not run again");
    Refusal::new(ErrorReason::ExecExpired, message)
}
