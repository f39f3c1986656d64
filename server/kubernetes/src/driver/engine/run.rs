//! The life of one exec, from its start to its end, in a task that belongs to no caller.

use std::{
    future::pending,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use sandgate_exec::task;
use sandgate_output::{Mark, Stream};
use sandgate_proto::runtime::v1::{ExecExit, ExecLost, StartFailure, exec_exit, start_failure::Reason};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{
    Execs, Plan,
    exec::{Exec, Live, Phase, offsets},
    stdin::Stdin,
};
use crate::driver::{
    inside::{Ending, Event, Inside, NotStarted, Started, finish},
    wrap::{First, NOTED, first_line, script, start_failure, taken},
};

const TERMINATE: i32 = 15;
const KILL: i32 = 9;
/// The first line is short; what is longer is not it.
const LONGEST_LINE: usize = 256;
/// Most commands have ended by then, and need no looking for.
const BEFORE_LOOKING: Duration = Duration::from_millis(20);
/// How long it is looked for, which is longer than the pod itself looks.
const LOOKING: Duration = Duration::from_secs(4);
/// How long the end of a program is waited for after KILL. Then it is lost.
const END_OF_KILLED: Duration = Duration::from_secs(10);

/// What came before the program itself.
enum Preamble {
    /// The first line, and what came with it on stdout and, by its own way, on stderr.
    Line(First, Bytes, Bytes),
    /// It ended without one.
    Ended(Ending, Bytes),
    Lost,
}

impl Execs {
    pub(super) async fn run(self, exec: Arc<Exec>, plan: Plan) {
        let begun = Instant::now();
        let deadline = plan.timeout.map(|span| begun + span);
        let started = match self.0.inside.start(plan.program).await {
            Ok(started) => started,
            Err(NotStarted::Refused(refusal)) => {
                self.free(&exec);
                return exec.set(Phase::Refused(refusal));
            }
            Err(NotStarted::Failed(failure)) => return exec.fail(failure),
            Err(NotStarted::Unknown(why)) => {
                tracing::warn!(exec = exec.id, why, "it is not known whether an exec was started");
                return exec.end(None, begun.elapsed());
            }
        };
        let Started {
            mut events,
            stdin,
            terminal,
        } = started;
        let live = Live {
            inside: Arc::clone(&self.0.inside),
            stdin: stdin.map(Stdin::new),
            terminal,
        };
        let _ = exec.live.set(live);
        let look = look_for_start(Arc::clone(&exec), Arc::clone(&self.0.inside), plan.nonce.clone());
        let looking = (!self.0.inside.tells_start()).then(|| task::spawn("look for start", &exec.id, look));
        let watching = task::spawn("time-out", &exec.id, keep_time(Arc::clone(&exec), deadline, plan.grace));
        let ending = self.follow(&exec, &mut events, &plan.nonce, begun).await;
        watching.abort();
        if let Some(looking) = looking {
            looking.abort();
        }
        if let Some(ending) = ending {
            exec.end(ending, begun.elapsed());
        }
    }

    /// Follows a program to its end; `None` when it turned out not to have run.
    async fn follow(
        &self,
        exec: &Arc<Exec>,
        events: &mut mpsc::Receiver<Event>,
        nonce: &str,
        begun: Instant,
    ) -> Option<Option<Ending>> {
        let rest = match preamble(events, nonce).await {
            Preamble::Line(First::Started(group), stdout, stderr) => {
                exec.status.send_modify(|status| {
                    status.group = group;
                    status.phase = Phase::Running;
                });
                [(Stream::Stdout, stdout), (Stream::Stderr, stderr)]
            }
            Preamble::Line(First::Taken, ..) => {
                exec.refuse_late(self, taken(&exec.id));
                return None;
            }
            Preamble::Line(First::Failed(reason), ..) => {
                exec.fail(start_failure(reason, exec.command()));
                return None;
            }
            Preamble::Ended(ending, said) => {
                // The wrapper itself says why it can't run, and does so before the program; unless it was killed.
                if ending == Ending::Killed || matches!(ending, Ending::Signal(_)) {
                    return Some(Some(ending));
                }
                tracing::debug!(exec = exec.id, ?ending, elapsed = ?begun.elapsed(), "no shell");
                let said = String::from_utf8_lossy(&said).trim().to_owned();
                exec.fail(StartFailure {
                    reason: Reason::NotFound.into(),
                    message: format!("the sandbox has no shell to start it with: {said}"),
                });
                return None;
            }
            Preamble::Lost => return Some(None),
        };
        for (stream, bytes) in rest.into_iter().filter(|(_, bytes)| !bytes.is_empty()) {
            exec.log.append(stream, bytes).await;
        }
        loop {
            match events.recv().await {
                Some(Event::Output(stream, bytes)) => exec.log.append(stream, bytes).await,
                Some(Event::Exited(ending)) => return Some(Some(ending)),
                None => return Some(None),
            }
        }
    }
}

/// Tells that an exec runs, where the pod itself tells it only at the end. Whoever is told may rely on it: a server that is
/// killed behind that leaves a command that runs, not one that was about to be sent.
async fn look_for_start(exec: Arc<Exec>, inside: Arc<dyn Inside>, nonce: String) {
    sleep(BEFORE_LOOKING).await;
    // A pod that runs as many commands as it can at once does not even look.
    let noted = timeout(LOOKING, finish(&*inside, script(NOTED, &[&nonce, &exec.id]))).await;
    if !matches!(&noted, Ok(Ok(finished)) if finished.is_success()) {
        tracing::warn!(
            exec = exec.id,
            ?noted,
            "an exec was sent, and has not noted that it runs"
        );
    }
    exec.leave_starting(Phase::Running);
}

async fn preamble(events: &mut mpsc::Receiver<Event>, nonce: &str) -> Preamble {
    let (mut line, mut said) = (BytesMut::new(), BytesMut::new());
    loop {
        match events.recv().await {
            Some(Event::Output(Stream::Stderr, bytes)) => said.extend_from_slice(&bytes),
            Some(Event::Output(Stream::Stdout, bytes)) => line.extend_from_slice(&bytes),
            Some(Event::Exited(ending)) => {
                said.extend_from_slice(&line);
                return Preamble::Ended(ending, said.freeze());
            }
            None => return Preamble::Lost,
        }
        if let Some(at) = line.iter().position(|byte| *byte == b'\n') {
            let rest = line.split_off(at + 1);
            if let Some(first) = first_line(&line, nonce) {
                return Preamble::Line(first, rest.freeze(), said.freeze());
            }
            line.extend_from_slice(&rest);
        }
        if line.len() > LONGEST_LINE {
            return Preamble::Lost;
        }
    }
}

/// Ends what runs too long: TERM, then KILL.
async fn keep_time(exec: Arc<Exec>, deadline: Option<Instant>, grace: Duration) {
    let Some(deadline) = deadline else {
        return pending().await;
    };
    tokio::time::sleep_until(deadline).await;
    let Some(live) = exec.live.get() else { return };
    exec.timed_out.store(true, Ordering::Release);
    if let Err(refusal) = exec.send(live, TERMINATE).await {
        tracing::debug!(exec = exec.id, %refusal, "TERM");
    }
    if timeout(grace, exec.exited()).await.is_ok() {
        return;
    }
    if let Err(refusal) = exec.send(live, KILL).await {
        tracing::debug!(exec = exec.id, %refusal, "KILL");
    }
    sleep(END_OF_KILLED).await;
}

// === impl Exec ===

impl Exec {
    fn set(&self, phase: Phase) {
        self.status.send_modify(|status| status.phase = phase);
    }

    /// Sets the phase, unless callers were told before that it runs. Answers whether it did.
    fn leave_starting(&self, phase: Phase) -> bool {
        self.status.send_if_modified(|status| {
            let is_starting = matches!(status.phase, Phase::Starting);
            if is_starting {
                status.phase = phase;
            }
            is_starting
        })
    }

    fn fail(&self, failure: StartFailure) {
        self.set(Phase::StartFailed(failure));
        self.log.mark(Mark::Ended);
    }

    /// It was started before, by somebody else.
    fn refuse_late(&self, execs: &Execs, refusal: sandgate_errors::Refusal) {
        if self.leave_starting(Phase::Refused(refusal.clone())) {
            return execs.free(self);
        }
        // Callers were told that it runs.
        self.fail(StartFailure {
            reason: Reason::Unspecified.into(),
            message: refusal.message,
        });
    }

    fn end(&self, ending: Option<Ending>, duration: Duration) {
        let sent = self.signalled.load(Ordering::Acquire);
        let status = match ending {
            Some(Ending::Signal(number)) => exec_exit::Status::Signal(number),
            Some(Ending::Code(code)) if sent != 0 && code == 128 + sent => exec_exit::Status::Signal(sent),
            Some(Ending::Code(code)) => exec_exit::Status::Code(code & 0xff),
            Some(Ending::Killed) if sent != 0 => exec_exit::Status::Signal(sent),
            Some(Ending::Killed) | None => exec_exit::Status::Lost(ExecLost {}),
        };
        if let Some(stdin) = self.live.get().and_then(|live| live.stdin.as_ref()) {
            stdin.shut();
        }
        let exit = ExecExit {
            status: Some(status),
            timed_out: self.timed_out.load(Ordering::Acquire),
            duration: duration.try_into().ok(),
            offsets: Some(offsets(self.log.written())),
            exited_at: Some(SystemTime::now().into()),
            ..ExecExit::default()
        };
        self.set(Phase::Exited(Box::new(exit)));
        self.log.mark(Mark::Exited);
        self.log.mark(Mark::Ended);
    }
}
