//! One exec: what is known of it, and what can be done to it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use sandgate_errors::Refusal;
use sandgate_exec::{Budget, Fingerprint, budgeted, pty_size};
use sandgate_output::{Log, Offsets, Stream};
use sandgate_proto::{
    runtime::v1::{
        self as proto, ExecExit, ExecInfo, ExecSpec, ExecState, PtySize, StartFailure, StdinAccepted, StdinWrite,
    },
    v1::ErrorReason,
};
use tokio::{sync::watch, time::timeout};

use super::stdin::Stdin;
use crate::driver::{
    capabilities,
    inside::{Inside, Terminal, finish},
    wrap::{KILL, KILL_NOTED, script},
};

/// An exec that was started, or could not be.
pub(crate) struct Exec {
    pub(crate) id: String,
    /// Its place in the order of all starts.
    pub(crate) number: u64,
    pub(super) incarnation: String,
    pub(super) fingerprint: Fingerprint,
    command: String,
    pub(super) started_at: SystemTime,
    pub(super) log: Log,
    pub(super) status: watch::Sender<Status>,
    pub(super) live: OnceLock<Live>,
    pub(super) timed_out: AtomicBool,
    /// The last signal that was sent from here; 0: none.
    pub(super) signalled: AtomicI32,
    save_error: &'static str,
    callers: AtomicUsize,
    calls: AtomicU64,
}

/// What changes in the life of an exec.
#[derive(Debug, Clone, Default)]
pub(super) struct Status {
    pub(super) phase: Phase,
    pub(super) group: u32,
}

#[derive(Debug, Clone, Default)]
pub(super) enum Phase {
    #[default]
    Starting,
    /// It was not started, and its id is free again.
    Refused(Refusal),
    StartFailed(StartFailure),
    Running,
    Exited(Box<ExecExit>),
}

/// The ends that are held of a running program.
pub(super) struct Live {
    pub(super) inside: Arc<dyn Inside>,
    pub(super) stdin: Option<Stdin>,
    pub(super) terminal: Option<Arc<dyn Terminal>>,
}

/// A caller that waits for an exec.
pub(crate) struct Caller(Arc<Exec>);

const KILLED: i32 = 9;
/// How long after KILL the end is waited for.
const END_OF_KILLED: Duration = Duration::from_secs(10);

// === impl Exec ===

impl Exec {
    pub(super) fn new(
        id: &str,
        number: u64,
        incarnation: &str,
        fingerprint: Fingerprint,
        command: String,
        log: Log,
        spec: &ExecSpec,
    ) -> Self {
        let save_error = match spec.save_output {
            Some(_) => "what runs in this sandbox does not save output to files",
            None => "",
        };
        Self {
            id: id.to_owned(),
            number,
            incarnation: incarnation.to_owned(),
            fingerprint,
            command,
            started_at: SystemTime::now(),
            log,
            status: watch::Sender::default(),
            live: OnceLock::new(),
            timed_out: AtomicBool::new(false),
            signalled: AtomicI32::new(0),
            save_error,
            callers: AtomicUsize::new(0),
            calls: AtomicU64::new(0),
        }
    }

    /// As it is now.
    pub(crate) fn info(&self) -> ExecInfo {
        let status = self.status.borrow().clone();
        let (state, start_failure, exit) = match status.phase {
            Phase::Starting | Phase::Running | Phase::Refused(_) => (ExecState::Running, None, None),
            Phase::StartFailed(failure) => (ExecState::StartFailed, Some(failure), None),
            Phase::Exited(exit) => (ExecState::Exited, None, Some(*exit)),
        };
        let stdin = self.stdin_accepted();
        ExecInfo {
            exec_id: self.id.clone(),
            incarnation: self.incarnation.clone(),
            state: state.into(),
            pid: status.group,
            started_at: Some(self.started_at.into()),
            start_failure,
            exit,
            processes_alive: self.is_alive(),
            output_ended: self.log.is_ended(),
            written: Some(offsets(self.log.written())),
            oldest: Some(offsets(self.log.oldest())),
            stdin_offset: stdin.offset,
            stdin_open: !stdin.closed,
            command: self.command.clone(),
            save_error: self.save_error.to_owned(),
            ..ExecInfo::default()
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.status.borrow().phase, Phase::Starting | Phase::Running)
    }

    pub(crate) fn command(&self) -> &str {
        &self.command
    }

    /// Writes stdin. See `WriteExecRequest`.
    ///
    /// # Errors
    /// STDIN_NOT_OPEN, STDIN_CLOSED, STDIN_TAKEN, STDIN_GAP.
    pub(crate) async fn write(
        &self,
        writer: &str,
        write: &StdinWrite,
        wait: Duration,
    ) -> Result<StdinAccepted, Refusal> {
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
    pub(crate) fn stdin_accepted(&self) -> StdinAccepted {
        let stdin = self.live.get().and_then(|live| live.stdin.as_ref());
        stdin.map_or(
            StdinAccepted {
                offset: 0,
                closed: true,
            },
            Stdin::accepted,
        )
    }

    /// Signals its process group.
    ///
    /// # Errors
    /// EXEC_NOT_RUNNING when it has ended, CAPABILITY_MISSING.
    pub(crate) async fn signal(&self, number: i32) -> Result<u32, Refusal> {
        if !(1..=64).contains(&number) {
            return Err(Refusal::invalid("signal", format!("{number} is not a signal: 1 to 64")));
        }
        let gone = || Refusal::new(ErrorReason::ExecNotRunning, "no process of the exec is alive");
        let live = self.live.get().filter(|_| self.is_alive()).ok_or_else(gone)?;
        if !capabilities::has(live.inside.driver(), "exec.signal") {
            return Err(capabilities::missing(live.inside.driver(), "exec.signal"));
        }
        self.send(live, number).await?;
        if number == KILLED {
            let _ = timeout(END_OF_KILLED, self.exited()).await;
        }
        Ok(1)
    }

    /// Sends a signal, without asking whether callers may.
    pub(super) async fn send(&self, live: &Live, number: i32) -> Result<(), Refusal> {
        let group = self.status.borrow().group;
        let args = match group {
            // A driver that hears of a program at its end only finds it by what it has noted in the pod.
            0 => script(KILL_NOTED, &[&number.to_string(), &self.id]),
            group => script(KILL, &[&number.to_string(), &group.to_string()]),
        };
        self.signalled.store(number, Ordering::Release);
        let finished = finish(&*live.inside, args).await?;
        if finished.is_success() || !self.is_alive() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
        Err(Refusal::new(
            ErrorReason::ExecNotRunning,
            format!("the signal reached nobody: {why}"),
        ))
    }

    /// Sets the size of its terminal.
    ///
    /// # Errors
    /// PTY_MISSING when it has none, EXEC_NOT_RUNNING when it has ended.
    pub(crate) async fn resize(&self, size: &PtySize) -> Result<(), Refusal> {
        let (columns, rows) = pty_size(size)?;
        let terminal = self.live.get().and_then(|live| live.terminal.clone());
        let terminal = terminal.ok_or_else(|| Refusal::new(ErrorReason::PtyMissing, "the exec has no terminal"))?;
        if !self.is_alive() {
            return Err(Refusal::new(
                ErrorReason::ExecNotRunning,
                "no process of the exec is alive",
            ));
        }
        terminal.resize(columns, rows).await
    }

    /// Waits until it is known whether it was started.
    ///
    /// # Errors
    /// Why it was not; its id is free again.
    pub(crate) async fn settled(&self) -> Result<(), Refusal> {
        self.phase_where(|phase| !matches!(phase, Phase::Starting)).await;
        match &self.status.borrow().phase {
            Phase::Refused(refusal) => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    /// Waits until the program has ended.
    pub(crate) async fn exited(&self) {
        self.phase_where(|phase| !matches!(phase, Phase::Starting | Phase::Running))
            .await;
    }

    /// Both streams within a budget.
    pub(crate) async fn output(&self, budget: Budget) -> (proto::BudgetedOutput, proto::BudgetedOutput) {
        let cut = |stream| async move { budgeted(self.log.excerpt(stream, budget.head, budget.tail).await) };
        (cut(Stream::Stdout).await, cut(Stream::Stderr).await)
    }

    /// How many callers there have been.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// Somebody waits for it.
    pub(crate) fn has_callers(&self) -> bool {
        self.callers.load(Ordering::Acquire) > 0
    }

    /// Counts a caller that waits for the exec, until the guard is dropped.
    pub(crate) fn caller(self: &Arc<Self>) -> Caller {
        self.callers.fetch_add(1, Ordering::AcqRel);
        self.calls.fetch_add(1, Ordering::AcqRel);
        Caller(Arc::clone(self))
    }

    async fn phase_where(&self, mut wanted: impl FnMut(&Phase) -> bool) {
        // The sender lives in `self`, so the channel can't be closed.
        let _ = self.status.subscribe().wait_for(|status| wanted(&status.phase)).await;
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(super) fn offsets(offsets: Offsets) -> proto::ExecOffsets {
    proto::ExecOffsets {
        stdout: offsets.stdout,
        stderr: offsets.stderr,
    }
}
