//! Execs of a pod that knows of none: ids, output, followers and limits, in the memory of this process.
//!
//! It keeps what our runtime promises as far as that can be kept from outside. An id runs once; output is one log with
//! offsets; a caller may go and come back. What it can't do is outlive this process: another server does not know these
//! execs, and only the claim in the pod (see `wrap`) keeps it from running one again.

mod events;
mod exec;
mod run;
mod stdin;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sandgate_errors::Refusal;
use sandgate_exec::{Digest, Fingerprint, check_id, command_line, digest, fingerprint, pty_size, span, task};
use sandgate_output::{LogOptions, OnFull, Store};
use sandgate_proto::{
    runtime::v1::{EnvVar, ExecSpec},
    v1::ErrorReason,
};

pub(crate) use self::{
    events::Events,
    exec::{Caller, Exec},
};
use super::{
    inside::{Inside, Program},
    wrap,
};

/// All execs of one pod that this process has started.
#[derive(Clone)]
pub(crate) struct Execs(Arc<Inner>);

struct Inner {
    inside: Arc<dyn Inside>,
    incarnation: String,
    /// Shared by all pods, with one bound for all of them.
    store: Store,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    execs: HashMap<String, Arc<Exec>>,
    /// In the order of their start.
    order: VecDeque<String>,
    count: u64,
    /// Ids whose records were dropped.
    spent: HashSet<Digest>,
    env: Vec<EnvVar>,
}

/// What is needed to run one.
struct Plan {
    program: Program,
    nonce: String,
    timeout: Option<Duration>,
    grace: Duration,
}

const KEPT: usize = 1_000;
const RETAIN: u64 = 4 << 20;
const RETAIN_MOST: u64 = 16 << 20;
const HEAD_BYTES: u64 = 1 << 20;
const GRACE: Duration = Duration::from_secs(5);
const MAX_GRACE: Duration = Duration::from_secs(300);

// === impl Execs ===

impl Execs {
    pub(crate) fn new(inside: Arc<dyn Inside>, incarnation: String, store: Store) -> Self {
        Self(Arc::new(Inner {
            inside,
            incarnation,
            store,
            table: Mutex::default(),
        }))
    }

    /// Sets the environment that later execs get beside their own.
    pub(crate) fn set_env(&self, env: Vec<EnvVar>) {
        self.table().env = env;
    }

    /// Starts an exec, or finds it. `attach` is called before it can have written anything, if this call starts it.
    ///
    /// # Errors
    /// As our runtime's, and CAPABILITY_MISSING for what the driver can't do.
    pub(crate) async fn start<T>(
        &self,
        id: &str,
        spec: ExecSpec,
        attach: impl FnOnce(&Arc<Exec>) -> T,
    ) -> Result<(Arc<Exec>, bool, T), Refusal> {
        check_id("exec_id", id)?;
        let mark = fingerprint(&spec, self.0.incarnation.as_bytes());
        let found = self.table().find_same(id, &mark)?;
        let made = match found {
            Some(exec) => (exec, None),
            None => self.insert(id, mark, &spec)?,
        };
        let (exec, plan) = made;
        let attached = attach(&exec);
        let Some(plan) = plan else {
            exec.settled().await?;
            return Ok((exec, false, attached));
        };
        let (execs, running) = (self.clone(), Arc::clone(&exec));
        // In a task of its own: it belongs to no caller.
        task::spawn("exec", id, async move { execs.run(running, plan).await });
        exec.settled().await?;
        Ok((exec, true, attached))
    }

    /// Finds an exec.
    ///
    /// # Errors
    /// EXEC_NOT_FOUND, EXEC_EXPIRED.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Exec>, Refusal> {
        check_id("exec_id", id)?;
        let table = self.table();
        if table.spent.contains(&digest(id)) {
            return Err(wrap::taken(id));
        }
        let missing = || {
            let message = format!("there is no exec {id} on this server, which is the only one that could know of it");
            Refusal::new(ErrorReason::ExecNotFound, message)
        };
        table.execs.get(id).cloned().ok_or_else(missing)
    }

    /// All that are kept, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Exec>> {
        let table = self.table();
        table
            .order
            .iter()
            .filter_map(|id| table.execs.get(id).cloned())
            .collect()
    }

    fn insert(&self, id: &str, mark: Fingerprint, spec: &ExecSpec) -> Result<(Arc<Exec>, Option<Plan>), Refusal> {
        let plan = self.plan(id, spec)?;
        let retain_bytes = match spec.retain_bytes {
            0 => RETAIN,
            n if n <= RETAIN_MOST => n,
            _ => {
                return Err(Refusal::invalid(
                    "spec.retain_bytes",
                    format!("at most {RETAIN_MOST} bytes here"),
                ));
            }
        };
        let mut table = self.table();
        // Another caller may have been quicker.
        if let Some(exec) = table.find_same(id, &mark)? {
            return Ok((exec, None));
        }
        let options = LogOptions {
            retain_bytes,
            on_full: OnFull::DropOldest,
            head_bytes: HEAD_BYTES.min(retain_bytes),
        };
        let wrong = |error: sandgate_output::StoreError| Refusal::new(ErrorReason::Internal, error.to_string());
        let log = self.0.store.create(&log_id(), options).map_err(wrong)?;
        table.count += 1;
        let exec = Exec::new(
            id,
            table.count,
            &self.0.incarnation,
            mark,
            command_line(spec),
            log,
            spec,
        );
        let exec = Arc::new(exec);
        table.execs.insert(id.to_owned(), Arc::clone(&exec));
        table.order.push_back(id.to_owned());
        let dropped = table.drop_old();
        drop(table);
        self.forget_logs(dropped);
        Ok((exec, Some(plan)))
    }

    fn plan(&self, id: &str, spec: &ExecSpec) -> Result<Plan, Refusal> {
        let driver = self.0.inside.driver();
        wrap::check(driver, spec)?;
        let env = self.table().env.clone();
        let nonce = format!("sandgate-{:016x}", random());
        let mut with_term = spec.clone();
        let pty = match &spec.pty {
            None => None,
            Some(pty) => {
                let term = if pty.term.is_empty() {
                    "xterm-256color"
                } else {
                    &pty.term
                };
                let var = EnvVar {
                    name: "TERM".to_owned(),
                    value: term.to_owned(),
                    ..EnvVar::default()
                };
                with_term.env.insert(0, var);
                Some(pty.size.as_ref().map_or(Ok((80, 24)), pty_size)?)
            }
        };
        let program = Program {
            args: wrap::wrap(driver, id, &nonce, &with_term, &env)?,
            stdin: spec.stdin() == sandgate_proto::runtime::v1::StdinMode::Open || pty.is_some(),
            pty,
        };
        let timeout = span("spec.timeout", spec.timeout)?;
        if timeout == Some(Duration::ZERO) {
            return Err(Refusal::invalid(
                "spec.timeout",
                "must be more than 0; leave it out for none",
            ));
        }
        let grace = span("spec.kill_grace", spec.kill_grace)?.unwrap_or(GRACE);
        if grace > MAX_GRACE {
            return Err(Refusal::invalid("spec.kill_grace", "must be at most 5 minutes"));
        }
        Ok(Plan {
            program,
            nonce,
            timeout,
            grace,
        })
    }

    /// Frees an id: its exec did not run.
    fn free(&self, exec: &Exec) {
        let mut table = self.table();
        table.execs.remove(&exec.id);
        table.order.retain(|id| *id != exec.id);
        drop(table);
        self.forget_logs(vec![exec.log.id().to_owned()]);
    }

    fn forget_logs(&self, logs: Vec<String>) {
        if logs.is_empty() {
            return;
        }
        let store = self.0.store.clone();
        task::spawn("forget output", "", async move {
            for log in logs {
                let _ = store.remove(&log).await;
            }
        });
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    /// The sandbox is gone, or its pod was replaced: what it wrote is nobody's any more.
    fn drop(&mut self) {
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        let logs: Vec<_> = table.execs.values().map(|exec| exec.log.id().to_owned()).collect();
        let store = self.store.clone();
        if let (Ok(runtime), false) = (tokio::runtime::Handle::try_current(), logs.is_empty()) {
            runtime.spawn(async move {
                for log in logs {
                    let _ = store.remove(&log).await;
                }
            });
        }
    }
}

// === impl Table ===

impl Table {
    fn find_same(&self, id: &str, mark: &Fingerprint) -> Result<Option<Arc<Exec>>, Refusal> {
        if self.spent.contains(&digest(id)) {
            return Err(wrap::taken(id));
        }
        match self.execs.get(id) {
            Some(exec) if exec.fingerprint == *mark => Ok(Some(Arc::clone(exec))),
            Some(_) => {
                let message = format!("exec {id} was started with a different request");
                Err(Refusal::new(ErrorReason::ExecAlreadyExists, message))
            }
            None => Ok(None),
        }
    }

    /// Drops the oldest records of execs that are over, and answers their logs.
    fn drop_old(&mut self) -> Vec<String> {
        let mut dropped = Vec::new();
        while self.execs.len() > KEPT {
            let over = self
                .order
                .iter()
                .position(|id| self.execs.get(id).is_none_or(|exec| !exec.is_alive()));
            let Some(id) = over.and_then(|at| self.order.remove(at)) else {
                break;
            };
            self.spent.insert(digest(&id));
            dropped.extend(self.execs.remove(&id).map(|exec| exec.log.id().to_owned()));
        }
        dropped
    }
}

/// Ids of execs are unique in one sandbox only, and the store is for all.
fn log_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// What no program can know before it runs.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
