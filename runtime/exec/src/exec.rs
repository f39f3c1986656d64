//! One exec: what is known of it, and what can be done to it.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use sandgate_errors::Refusal;
use sandgate_output::{Log, Offsets, Stream};
use sandgate_proto::{
    runtime::v1::{self as proto, ExecExit, ExecInfo, ExecState, StartFailure, StdinAccepted, StdinWrite},
    v1::ErrorReason,
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    budget::{Budget, budgeted},
    launch::resize,
    spec::{Fingerprint, pty_size},
    stdin::Stdin,
    task,
    tree::Tree,
};

/// An exec that was started, or could not be.
pub struct Exec {
    pub(crate) id: String,
    /// Its place in the order of all starts.
    pub(crate) number: u64,
    pub(crate) incarnation: String,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) command: String,
    pub(crate) started_at: SystemTime,
    pub(crate) log: Log,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) live: OnceLock<Live>,
    pub(crate) timed_out: AtomicBool,
    pub(crate) callers: AtomicUsize,
    /// How many callers there have been.
    pub(crate) calls: AtomicU64,
}

/// What changes in the life of an exec.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) phase: Phase,
    pub(crate) pid: u32,
    /// Some process is alive.
    pub(crate) alive: bool,
    pub(crate) saved: Saved,
    /// When the last of it was over: program, output and processes.
    pub(crate) over_at: Option<SystemTime>,
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Phase {
    #[default]
    Starting,
    /// It was not started, and its id is free again.
    Refused(Refusal),
    StartFailed(StartFailure),
    Running,
    Exited(Box<ExecExit>),
}

/// How far the output was saved to a file in the sandbox.
#[derive(Debug, Clone, Default)]
pub(crate) struct Saved {
    /// It will not be saved, or no further.
    pub(crate) done: bool,
    pub(crate) upto: Offsets,
    /// Bytes in the file.
    pub(crate) bytes: u64,
    pub(crate) path: String,
    pub(crate) path_raw: Bytes,
    pub(crate) error: String,
}

/// The ends that the runtime holds of a running program.
pub(crate) struct Live {
    pub(crate) tree: Tree,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) terminal: Option<Terminal>,
}

/// The runtime's side of a terminal, until the exec is over.
pub(crate) struct Terminal(Mutex<Option<OwnedFd>>);

// === impl Live ===

impl Live {
    /// Gives back what the kernel holds for the exec, once it is over. What is to be told of it stays.
    pub(crate) fn release(&self) {
        self.tree.release();
        if let Some(terminal) = &self.terminal {
            *terminal.lock() = None;
        }
    }
}

// === impl Terminal ===

impl Terminal {
    pub(crate) fn new(master: OwnedFd) -> Self {
        Self(Mutex::new(Some(master)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Exec ===

impl Exec {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its place in the order of all starts in this sandbox.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// As it is now.
    #[must_use]
    pub fn info(&self) -> ExecInfo {
        let status = self.status.borrow().clone();
        let stdin = self.live.get().and_then(|live| live.stdin.as_ref());
        let (state, start_failure, exit) = match status.phase {
            Phase::Starting | Phase::Running | Phase::Refused(_) => (ExecState::Running, None, None),
            Phase::StartFailed(failure) => (ExecState::StartFailed, Some(failure), None),
            Phase::Exited(exit) => (ExecState::Exited, None, Some(*exit)),
        };
        ExecInfo {
            exec_id: self.id.clone(),
            incarnation: self.incarnation.clone(),
            state: state.into(),
            pid: status.pid,
            started_at: Some(self.started_at.into()),
            start_failure,
            exit,
            processes_alive: status.alive,
            output_ended: self.log.is_ended(),
            written: Some(offsets(self.log.written())),
            oldest: Some(offsets(self.log.oldest())),
            stdin_offset: stdin.map_or(0, Stdin::offset),
            stdin_open: stdin.is_some_and(Stdin::is_open),
            command: self.command.clone(),
            saved_path: status.saved.path,
            saved_path_raw: status.saved.path_raw,
            save_error: status.saved.error,
            saved_bytes: status.saved.bytes,
        }
    }

    /// Some process of it is alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.status.borrow().alive
    }

    /// Writes stdin. See `WriteExecRequest`.
    ///
    /// # Errors
    /// `STDIN_NOT_OPEN`, `STDIN_CLOSED`, `STDIN_TAKEN`, `STDIN_GAP`.
    pub async fn write(&self, writer: &str, write: &StdinWrite, wait: Duration) -> Result<StdinAccepted, Refusal> {
        if write.data.len() > MAX_STDIN {
            return Err(Refusal::invalid("stdin.data", "at most 1 MiB a write"));
        }
        if writer.len() > MAX_WRITER {
            return Err(Refusal::invalid("writer", "at most 64 bytes"));
        }
        let no_stdin = || Refusal::new(ErrorReason::StdinNotOpen, "the exec was started without stdin");
        let Some(live) = self.live.get() else {
            let message = "stdin is closed: no process of the exec is left";
            return Err(Refusal::new(ErrorReason::StdinClosed, message).with("accepted", 0));
        };
        live.stdin
            .as_ref()
            .ok_or_else(no_stdin)?
            .write(writer, write, wait)
            .await
    }

    /// How far stdin is written.
    #[must_use]
    pub fn stdin_accepted(&self) -> StdinAccepted {
        let stdin = self.live.get().and_then(|live| live.stdin.as_ref());
        StdinAccepted {
            offset: stdin.map_or(0, Stdin::offset),
            closed: !stdin.is_some_and(Stdin::is_open),
        }
    }

    /// Kills until nothing is left, in a task of its own: a caller that goes away must not leave a tree half killed.
    pub(crate) fn kill(self: &Arc<Self>) -> JoinHandle<io::Result<u32>> {
        let exec = self.clone();
        task::spawn("kill", &self.id, async move {
            match exec.live.get() {
                Some(live) => live.tree.kill().await,
                None => Ok(0),
            }
        })
    }

    /// Sends a signal to every process. KILL returns when nothing is left.
    ///
    /// # Errors
    /// `EXEC_NOT_RUNNING` when no process is alive.
    pub async fn signal(self: &Arc<Self>, number: i32) -> Result<u32, Refusal> {
        if !SIGNALS.contains(&number) {
            return Err(Refusal::invalid("signal", format!("{number} is not a signal: 1 to 64")));
        }
        let live = self.live.get().filter(|_| self.is_alive()).ok_or_else(not_running)?;
        let reached = if number == KILL {
            self.kill().await.unwrap_or_else(|error| Err(io::Error::other(error)))
        } else {
            live.tree.signal(number)
        };
        let reached = reached.map_err(|error| {
            Refusal::new(
                ErrorReason::Internal,
                format!("the processes of the exec can't be listed: {error}"),
            )
        })?;
        if reached == 0 { Err(not_running()) } else { Ok(reached) }
    }

    /// Sets the size of its terminal.
    ///
    /// # Errors
    /// `PTY_MISSING` when it has none, `EXEC_NOT_RUNNING` when no process is alive.
    pub fn resize(&self, size: &proto::PtySize) -> Result<(), Refusal> {
        let (columns, rows) = pty_size(size)?;
        let missing = || Refusal::new(ErrorReason::PtyMissing, "the exec has no terminal");
        let terminal = self
            .live
            .get()
            .and_then(|live| live.terminal.as_ref())
            .ok_or_else(missing)?;
        match terminal.lock().as_ref() {
            Some(master) => {
                resize(master, columns, rows).map_err(|error| Refusal::new(ErrorReason::Internal, error.to_string()))
            }
            None => Err(not_running()),
        }
    }

    /// Waits until it is known whether the program could be started.
    pub async fn started(&self) {
        self.status_where(|status| !matches!(status.phase, Phase::Starting))
            .await;
    }

    /// Waits until it is known whether it was started.
    ///
    /// # Errors
    /// Why it was not; its id is free again.
    pub async fn settled(&self) -> Result<(), Refusal> {
        self.started().await;
        match &self.status.borrow().phase {
            Phase::Refused(refusal) => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    /// Waits until the program has ended and, if that was asked for, its output so far is saved. After a timeout, which ends
    /// all of it, also until nothing of it is left.
    pub async fn exited(&self) {
        self.status_where(|status| match &status.phase {
            Phase::Exited(exit) if exit.timed_out && status.alive => false,
            Phase::Exited(exit) => {
                let exit = exit.offsets.unwrap_or_default();
                status.saved.done
                    || (status.saved.upto.stdout >= exit.stdout && status.saved.upto.stderr >= exit.stderr)
            }
            Phase::StartFailed(_) | Phase::Refused(_) => true,
            Phase::Starting | Phase::Running => false,
        })
        .await;
    }

    /// Both streams within a budget.
    pub async fn output(&self, budget: Budget) -> (proto::BudgetedOutput, proto::BudgetedOutput) {
        let cut = |stream| async move { budgeted(self.log.excerpt(stream, budget.head, budget.tail).await) };
        (cut(Stream::Stdout).await, cut(Stream::Stderr).await)
    }

    /// How many callers there have been.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// Somebody waits for it.
    #[must_use]
    pub fn has_callers(&self) -> bool {
        self.callers.load(Ordering::Acquire) > 0
    }

    /// Counts a caller that waits for the exec, until the guard is dropped.
    pub fn caller(self: &Arc<Self>) -> Caller {
        self.callers.fetch_add(1, Ordering::AcqRel);
        self.calls.fetch_add(1, Ordering::AcqRel);
        Caller(self.clone())
    }

    /// Waits until no process of it is left.
    pub(crate) async fn dead(&self) {
        self.status_where(|status| !status.alive).await;
    }

    /// Waits until its output is saved, if that was asked for.
    pub(crate) async fn saved(&self) {
        self.status_where(|status| status.saved.done).await;
    }

    pub(crate) async fn over(&self) {
        self.status_where(|status| status.over_at.is_some()).await;
    }

    async fn status_where(&self, wanted: impl FnMut(&Status) -> bool) {
        // The sender lives in `self`, so the channel can't be closed.
        let _ = self.status.subscribe().wait_for(wanted).await;
    }
}

/// A caller that waits for an exec.
pub struct Caller(Arc<Exec>);

// === impl Caller ===

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::AcqRel);
    }
}

const SIGNALS: RangeInclusive<i32> = 1..=64;
const KILL: i32 = 9;
const MAX_STDIN: usize = 1 << 20;
const MAX_WRITER: usize = 64;

pub(crate) fn offsets(offsets: Offsets) -> proto::ExecOffsets {
    proto::ExecOffsets {
        stdout: offsets.stdout,
        stderr: offsets.stderr,
    }
}

fn not_running() -> Refusal {
    Refusal::new(ErrorReason::ExecNotRunning, "no process of the exec is alive")
}
