//! What a driver must be able to do in a pod: start a program and tell what becomes of it. Everything else is built on it.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use sandgate_errors::Refusal;
use sandgate_output::Stream;
use sandgate_proto::{
    runtime::v1::StartFailure,
    v1::{ConnectionMode, ErrorReason},
};
use tokio::sync::mpsc;

use super::{Driver, wrap::script};

/// Bytes of one message of a program's output, at most.
pub(crate) const CHUNK: usize = 64 << 10;
/// Messages between a driver and whoever takes the output. Behind them the program waits.
pub(crate) const QUEUE: usize = 4;

/// A program to start, whole: arguments as they are given to it, no shell but the one that they may name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) args: Vec<String>,
    pub(crate) stdin: bool,
    /// Columns and rows of a terminal.
    pub(crate) pty: Option<(u16, u16)>,
}

/// A program that was started. Dropping it tells nobody in the pod.
pub(crate) struct Started {
    /// What it writes, then how it ended. A channel that closes before that: it was lost, and may run on.
    pub(crate) events: mpsc::Receiver<Event>,
    /// Takes what it reads, if it was started so.
    pub(crate) stdin: Option<mpsc::Sender<Input>>,
    pub(crate) terminal: Option<Arc<dyn Terminal>>,
}

/// What a program does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Output(Stream, Bytes),
    Exited(Ending),
}

/// How a program ended, as far as the pod tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Code(i32),
    Signal(i32),
    /// By some signal.
    Killed,
}

/// What a program gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    Data(Bytes),
    Close,
}

/// Reaches the terminal of a program that runs.
#[async_trait]
pub(crate) trait Terminal: Send + Sync {
    /// Sets its size.
    async fn resize(&self, columns: u16, rows: u16) -> Result<(), Refusal>;
}

/// Why a program was not started, or is not known to have been.
#[derive(Debug, Clone)]
pub(crate) enum NotStarted {
    /// It did not run.
    Refused(Refusal),
    /// It could not run.
    Failed(StartFailure),
    /// It may have run.
    Unknown(String),
}

/// What a short program did.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    pub(crate) ending: Ending,
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
}

/// One pod, as a driver sees it.
#[async_trait]
pub(crate) trait Inside: fmt::Debug + Send + Sync + 'static {
    fn driver(&self) -> Driver;

    /// The way in use.
    fn mode(&self) -> ConnectionMode;

    /// Looks whether somebody is at home.
    async fn greet(&self) -> Result<(), Refusal> {
        finish(self, script("exit 0", &[])).await.map(drop)
    }

    /// Starts a program.
    async fn start(&self, program: Program) -> Result<Started, NotStarted>;

    /// Puts bytes into a file that is nobody else's, and says where it is: at `path`, or elsewhere if this driver can't
    /// write there.
    async fn put(&self, path: &str, content: mpsc::Receiver<Bytes>) -> Result<String, Refusal> {
        put_by_cat(self, path, content).await
    }

    /// How much of what a program writes is told; the rest is lost.
    fn most_output(&self) -> u64 {
        u64::MAX
    }

    /// Whether it is known that a program runs before it has ended.
    fn tells_start(&self) -> bool {
        true
    }
}

// === impl Finished ===

impl Finished {
    pub(crate) fn is_success(&self) -> bool {
        self.ending == Ending::Code(0)
    }
}

// === impl NotStarted ===

impl NotStarted {
    /// Nothing ran, because nobody could be reached.
    pub(crate) fn unreachable(error: &dyn fmt::Display) -> Self {
        Self::Refused(Refusal::new(
            ErrorReason::SandboxUnreachable,
            format!("the sandbox can't be reached right now: {error}"),
        ))
    }

    /// As the end of a call that does not say what ran.
    pub(crate) fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Failed(failure) => Refusal::new(ErrorReason::Internal, failure.message),
            Self::Unknown(why) => Refusal::new(
                ErrorReason::SandboxUnreachable,
                format!("the connection was lost, and what was asked for may have been done: {why}"),
            ),
        }
    }
}

/// The most that a short program may write: answers are at most 3 MiB.
const MOST: usize = 4 << 20;

/// Runs a short program to its end and keeps what it writes.
pub(crate) async fn finish(inside: &(impl Inside + ?Sized), args: Vec<String>) -> Result<Finished, Refusal> {
    let program = Program {
        args,
        ..Program::default()
    };
    let started = inside.start(program).await.map_err(NotStarted::into_refusal)?;
    collect(started.events).await
}

async fn collect(mut events: mpsc::Receiver<Event>) -> Result<Finished, Refusal> {
    let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
    while let Some(event) = events.recv().await {
        match event {
            Event::Output(Stream::Stdout, bytes) => stdout.extend_from_slice(&bytes),
            Event::Output(Stream::Stderr, bytes) => stderr.extend_from_slice(&bytes),
            Event::Exited(ending) => {
                return Ok(Finished {
                    ending,
                    stdout: stdout.freeze(),
                    stderr: stderr.freeze(),
                });
            }
        }
        if stdout.len() + stderr.len() > MOST {
            return Err(Refusal::new(ErrorReason::LimitReached, "the answer is too large"));
        }
    }
    Err(NotStarted::Unknown("its end was not told".to_owned()).into_refusal())
}

async fn put_by_cat(
    inside: &(impl Inside + ?Sized),
    path: &str,
    mut content: mpsc::Receiver<Bytes>,
) -> Result<String, Refusal> {
    let program = Program {
        args: ["sh", "-c", "cat >\"$1\"", "sh", path].map(str::to_owned).to_vec(),
        stdin: true,
        pty: None,
    };
    let started = inside.start(program).await.map_err(NotStarted::into_refusal)?;
    let stdin = started
        .stdin
        .ok_or_else(|| Refusal::new(ErrorReason::Internal, "no stdin"))?;
    let feeding = async move {
        while let Some(bytes) = content.recv().await {
            if stdin.send(Input::Data(bytes)).await.is_err() {
                return;
            }
        }
        let _ = stdin.send(Input::Close).await;
    };
    // Both at once: a program that fails says so while it is still fed.
    let (_, finished) = tokio::join!(feeding, collect(started.events));
    let finished = finished?;
    if finished.is_success() {
        return Ok(path.to_owned());
    }
    Err(super::files::failure(&finished, path))
}
