//! All execs of a sandbox: each id once, for the sandbox's life.

mod recover;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use sandgate_errors::Refusal;
use sandgate_files::Defaults;
use sandgate_output::{LogOptions, Mark, OnFull, Store};
use sandgate_proto::{
    runtime::v1::{ExecSpec, StartFailure},
    v1::ErrorReason,
};
use sandgate_sys::Counters;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Semaphore, watch},
    task::spawn_blocking,
};

use crate::{
    exec::{Exec, Live, Phase, Saved, Status, Terminal},
    journal::{Entry, Journal},
    launch::{Launched, Launcher},
    save,
    settings::Settings,
    spec::{Env, Fingerprint, Spec, command_line, fingerprint},
    stdin::Stdin,
    supervise::{Count, Supervisor, keep_time},
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
    env: Env,
    stopping: bool,
}

const STARTS_AT_ONCE: usize = 4;
/// Kept of each stream's start when older output is dropped, for budgets.
const HEAD_BYTES: u64 = 1 << 20;
const MAX_ID: usize = 64;
const SWEEP: Duration = Duration::from_secs(5);
const KILL: i32 = 9;
/// How far a file that output is saved to may be behind the log.
const SAVE_LAG: u64 = 1 << 20;

// === impl Execs ===

impl Execs {
    /// Takes over the state directory: what an earlier runtime left there ends as lost.
    ///
    /// # Errors
    /// When the state directory or the cgroups can't be used.
    pub async fn open(settings: Settings) -> io::Result<Self> {
        let inner = recover::open(settings)?;
        inner.launcher.children.reap_orphans()?;
        let execs = Self(Arc::new(inner));
        let sweeper = execs.clone();
        task::spawn("drop old records", "", async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                sweeper.drop_old().await;
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
        let (exec, started, ()) = self.start_attached(id, spec, |_| ()).await?;
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
                exec.started().await;
                if let Phase::Refused(refusal) = &exec.status.borrow().phase {
                    return Err(refusal.clone());
                }
                return Ok((exec, false, attached));
            }
            Inserted::New(exec, spec, slot) => (exec, spec, slot),
        };
        let attached = attach(&exec);
        // In a task of its own: a caller that goes away must not leave it half started.
        let (execs, starting) = (self.clone(), exec.clone());
        let begun = task::spawn("start", id, async move { execs.begin(&starting, *spec, slot).await });
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

    /// Ends every process and puts everything on disk. Nothing can be started from then on.
    pub async fn stop(&self, grace: Option<Duration>) {
        self.table().stopping = true;
        let execs = self.list();
        for exec in &execs {
            exec.started().await;
        }
        let trees = || {
            execs
                .iter()
                .filter(|exec| exec.is_alive())
                .filter_map(|exec| exec.live.get())
                .map(|live| &live.tree)
        };
        if let Some(grace) = grace {
            trees().for_each(|tree| drop(tree.terminate()));
            let all_over = async {
                for exec in &execs {
                    exec.over().await;
                }
            };
            let _ = tokio::time::timeout(grace, all_over).await;
        }
        // All at once, and not for ever: what the kernel does not let go of must not hold back the end.
        let killing = execs.iter().filter(|exec| exec.is_alive()).map(|exec| {
            let exec = exec.clone();
            task::spawn("kill", &exec.id.clone(), async move { exec.signal(KILL).await })
        });
        let killing: Vec<_> = killing.collect();
        let over = async {
            for killed in killing {
                let _ = killed.await;
            }
            for exec in &execs {
                // Neither must followers that hold a writer back. What is left is no more than the pipes hold.
                exec.log.release();
                exec.over().await;
            }
        };
        if tokio::time::timeout(SWEEP, over).await.is_err() {
            tracing::warn!("some execs are not over; what is known of them is put on disk");
        }
        for exec in &execs {
            if let Err(error) = exec.log.flush().await {
                tracing::error!(exec = exec.id, %error, "output could not be put on disk");
            }
        }
    }

    fn insert(&self, id: &str, mark: Fingerprint, command: String, spec: Spec) -> Result<Inserted, Refusal> {
        let mut table = self.table();
        // Another caller may have come first since we last looked.
        if let Some(exec) = table.find_same(id, &mark)? {
            return Ok(Inserted::Found(exec));
        }
        if table.stopping {
            return Err(Refusal::new(ErrorReason::Stopping, "the sandbox is stopping"));
        }
        let Some(slot) = table.free_slots.pop() else {
            let most = self.0.counters.slots();
            let message = format!("{most} execs are alive in this sandbox, which is the most it runs at once");
            return Err(Refusal::new(ErrorReason::LimitReached, message).with_retry_after(Duration::from_secs(1)));
        };
        let on_full = if spec.hold { OnFull::Hold } else { OnFull::DropOldest };
        let options = LogOptions {
            retain_bytes: spec.retain_bytes,
            on_full,
            head_bytes: HEAD_BYTES,
        };
        let log = self.0.store.create(id, options).map_err(|error| {
            table.free_slots.push(slot);
            Refusal::new(ErrorReason::Internal, error.to_string())
        })?;
        let status = Status {
            saved: Saved {
                done: spec.save.is_none(),
                ..Saved::default()
            },
            ..Status::default()
        };
        table.count += 1;
        let exec = Arc::new(Exec {
            id: id.to_owned(),
            number: table.count,
            incarnation: self.0.launcher.settings.incarnation.clone(),
            fingerprint: mark,
            command,
            started_at: SystemTime::now(),
            log,
            status: watch::Sender::new(status),
            live: std::sync::OnceLock::new(),
            timed_out: AtomicBool::new(false),
            callers: Default::default(),
            calls: Default::default(),
        });
        table.execs.insert(id.to_owned(), exec.clone());
        table.order.push_back(id.to_owned());
        Ok(Inserted::New(exec, Box::new(spec), slot))
    }

    async fn begin(&self, exec: &Arc<Exec>, spec: Spec, slot: usize) -> Result<(), Refusal> {
        let _turn = self.0.starts.acquire().await;
        let (env, stopping) = {
            let table = self.table();
            (table.env.clone(), table.stopping)
        };
        if stopping {
            let refusal = Refusal::new(ErrorReason::Stopping, "the sandbox is stopping");
            self.forget(exec, slot, refusal.clone()).await;
            return Err(refusal);
        }
        let (execs, starting) = (self.clone(), exec.clone());
        let launching = spawn_blocking(move || {
            execs.note_start(&starting, slot)?;
            Ok::<_, Refusal>((execs.0.launcher.launch(&starting.id, &spec, &env), spec))
        });
        let failed = |error: String| StartFailure {
            reason: 0,
            message: error,
        };
        match launching.await {
            Ok(Ok((Ok(launched), spec))) => {
                if let Err(error) = self.supervise(exec, launched, spec, slot) {
                    // It runs, and nobody would look after it.
                    if let Some(live) = exec.live.get() {
                        let _ = live.tree.kill().await;
                    }
                    self.start_failed(exec, slot, failed(error.to_string()));
                }
            }
            Ok(Ok((Err(failure), _))) => self.start_failed(exec, slot, failure),
            Ok(Err(refusal)) => {
                // Nothing was started and nothing noted: the id is free again.
                self.forget(exec, slot, refusal.clone()).await;
                return Err(refusal);
            }
            Err(error) => self.start_failed(exec, slot, failed(error.to_string())),
        }
        Ok(())
    }

    /// Writes down that the id is taken, before anything runs under it.
    fn note_start(&self, exec: &Exec, slot: usize) -> Result<(), Refusal> {
        let entry = Entry {
            id: exec.id.clone(),
            fingerprint: exec.fingerprint.to_vec(),
            info: Some(exec.info()),
            slot: u32::try_from(slot).unwrap_or(u32::MAX),
        };
        self.0.counters.store(slot, [0, 0]);
        self.0.journal.append(&entry).map_err(|error| {
            let message = format!("the runtime's own disk takes no more records: {error}");
            Refusal::new(ErrorReason::DiskFull, message)
        })
    }

    /// Writes down how an exec stands.
    fn note(&self, exec: &Exec) {
        let entry = Entry {
            id: exec.id.clone(),
            info: Some(exec.info()),
            ..Entry::default()
        };
        if let Err(error) = self.0.journal.append(&entry) {
            tracing::warn!(exec = exec.id, %error, "the end of an exec could not be written down");
        }
    }

    fn supervise(&self, exec: &Arc<Exec>, launched: Launched, spec: Spec, slot: usize) -> io::Result<()> {
        let Launched {
            pid,
            leader,
            tree,
            stdin,
            stdout,
            stderr,
            terminal,
            begun,
        } = launched;
        let stdin = stdin.map(|end| Stdin::new(end, terminal.is_some())).transpose()?;
        let terminal = terminal.map(Terminal::new);
        let _ = exec.live.set(Live { tree, stdin, terminal });
        let count = Count {
            counters: self.0.counters.clone(),
            slot,
        };
        let save_lag = spec.save.as_ref().map(|_| (spec.retain_bytes / 4).min(SAVE_LAG));
        let supervisor = Supervisor::new(exec.clone(), leader, stdout, stderr, begun, count, save_lag)?;
        self.0.alive.send_modify(|alive| *alive += 1);
        let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or(0);
        exec.status.send_modify(|status| {
            status.pid = pid;
            status.alive = true;
            status.phase = Phase::Running;
        });
        if let Some(save) = spec.save {
            save::follow(exec, save, spec.user, self.defaults());
        }
        if let Some(timeout) = spec.timeout {
            keep_time(exec, timeout, spec.kill_grace);
        }
        let execs = self.clone();
        task::spawn("supervise", &exec.id, async move {
            let empty = || execs.0.alive.send_modify(|alive| *alive -= 1);
            supervisor.run(|exec| execs.note(exec), empty).await;
            execs.table().free_slots.push(slot);
        });
        Ok(())
    }

    fn start_failed(&self, exec: &Arc<Exec>, slot: usize, failure: StartFailure) {
        exec.status.send_modify(|status| {
            status.phase = Phase::StartFailed(failure);
            status.saved.done = true;
            status.over_at = Some(SystemTime::now());
        });
        exec.log.mark(Mark::Exited);
        exec.log.mark(Mark::Ended);
        self.note(exec);
        self.table().free_slots.push(slot);
    }

    /// Takes an exec back that was not started. Whoever found it meanwhile gets the same refusal.
    async fn forget(&self, exec: &Arc<Exec>, slot: usize, refusal: Refusal) {
        {
            let mut table = self.table();
            table.execs.remove(&exec.id);
            table.order.retain(|id| *id != exec.id);
            table.free_slots.push(slot);
        }
        let _ = self.0.store.remove(&exec.id).await;
        exec.status.send_modify(|status| {
            status.phase = Phase::Refused(refusal);
            status.over_at = Some(SystemTime::now());
        });
    }

    fn defaults(&self) -> Defaults {
        let settings = &self.0.launcher.settings;
        Defaults {
            user: settings.user.clone(),
            cwd: settings.cwd.clone(),
        }
    }

    /// Drops records of execs that are over, beyond the number and the age that are kept. Their ids stay taken.
    async fn drop_old(&self) {
        for id in self.old() {
            if let Err(error) = self.0.journal.append(&Entry {
                id: id.clone(),
                ..Entry::default()
            }) {
                tracing::warn!(exec = id, %error, "an old record could not be dropped");
                return;
            }
            {
                let mut table = self.table();
                table.spent.insert(digest(&id));
                table.execs.remove(&id);
                table.order.retain(|known| *known != id);
            }
            if let Err(error) = self.0.store.remove(&id).await {
                tracing::warn!(exec = id, %error, "old output could not be removed");
            }
        }
    }

    fn old(&self) -> Vec<String> {
        let settings = &self.0.launcher.settings;
        let table = self.table();
        let over: Vec<(&String, SystemTime)> = table
            .order
            .iter()
            .filter_map(|id| Some((id, table.execs.get(id)?.status.borrow().over_at?)))
            .collect();
        let too_many = over.len().saturating_sub(settings.keep_finished);
        let too_old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > settings.keep_for);
        let old = over
            .iter()
            .enumerate()
            .filter(|(place, (_, at))| *place < too_many || too_old(at));
        old.map(|(_, (id, _))| (*id).clone()).collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Table ===

impl Table {
    fn find_same(&self, id: &str, mark: &Fingerprint) -> Result<Option<Arc<Exec>>, Refusal> {
        if self.spent.contains(&digest(id)) {
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

/// Checks an id against the grammar that all of ours share.
///
/// # Errors
/// `INVALID_ARGUMENT`, naming the field.
pub fn check_id(field: &str, id: &str) -> Result<(), Refusal> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(legal) {
        return Err(Refusal::invalid(field, "an id matches [A-Za-z0-9_-]{1,64}"));
    }
    Ok(())
}

/// What is kept of a spent id: short, and as good as the id.
type Digest = [u8; 16];

fn digest(id: &str) -> Digest {
    let mut short = [0; 16];
    short.copy_from_slice(&Sha256::digest(id)[..16]);
    short
}

fn expired(id: &str) -> Refusal {
    let message = format!("exec {id} ran and its record is no longer kept; it is not run again");
    Refusal::new(ErrorReason::ExecExpired, message)
}
