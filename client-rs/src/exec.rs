//! A command in a sandbox, followed across lost connections and server restarts.
//!
//! A task of its own (`driver`) holds the stream and makes it again; `track` keeps every event to one telling and
//! `stdin` every byte to one arrival. Both know nothing of connections.

mod control;
mod driver;
mod event;
mod stdin;
mod track;

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

pub use self::{
    control::Control,
    event::{Event, Outcome, OutputStream},
    stdin::Stdin,
};
use self::{
    driver::{Driver, Opening},
    stdin::stdin,
    track::Tracker,
};
use crate::{
    command::Command,
    error::{Error, Result},
    ids::new_id,
    sandbox::Sandbox,
    v1,
};

// With the stream's window, what a slow reader holds in memory: 8 of at most 64 KiB.
const QUEUED_EVENTS: usize = 8;

/// A command that is followed: a [`Stream`] of its [`Event`]s.
///
/// When the connection is lost, or the server is stopped or killed, the stream is made again and goes on where it was,
/// for as long as the client's patience lasts. Each byte comes once, in order, or is told as a gap. The command itself
/// runs once. SANDBOX_RESTARTED ends it with [`Error::Restarted`]. After an error or its last event nothing comes.
///
/// Dropping it stops following; the command runs on, and [`Sandbox::attach_exec`] finds it again.
#[derive(Debug)]
pub struct Exec {
    events: mpsc::Receiver<Result<Event>>,
    stdin: Option<Stdin>,
    control: Control,
    seen: v1::ExecOffsets,
    task: JoinHandle<()>,
}

/// An exec that was started before, to be followed.
#[derive(Clone, Debug)]
#[must_use]
pub struct Attach {
    sandbox: Sandbox,
    id: String,
    from: v1::ExecOffsets,
    stdin: Option<(String, u64)>,
    patience: Duration,
}

/// All that a command wrote.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub outcome: Outcome,
    /// Of stdout, without what is gone.
    pub stdout: Bytes,
    /// Of stderr, without what is gone.
    pub stderr: Bytes,
    /// Bytes that are gone.
    pub lost: u64,
}

// === impl Exec ===

impl Exec {
    pub(crate) fn start(sandbox: &Sandbox, command: Command) -> Self {
        let open = command.has_stdin().then_some(0);
        let id = command.id.clone();
        let seen = command.from;
        let start = v1::ExecStart {
            sandbox: sandbox.name().into(),
            exec_id: command.id,
            expected_incarnation: sandbox.expected_incarnation().into(),
            auto_resume: sandbox.auto_resumes(),
            spec: Some(command.spec),
            from: None,
            writer: new_id(),
        };
        Self::spawn(
            sandbox,
            id,
            Opening::Start(Box::new(start)),
            seen,
            open,
            sandbox.client().patience(),
        )
    }

    fn spawn(
        sandbox: &Sandbox,
        id: String,
        opening: Opening,
        seen: v1::ExecOffsets,
        stdin_offset: Option<u64>,
        patience: Duration,
    ) -> Self {
        let (sender, events) = mpsc::channel(QUEUED_EVENTS);
        let (started, is_started) = watch::channel(None);
        let (writer, inputs, unaccepted) = stdin(stdin_offset.unwrap_or_default());
        let driver = Driver {
            raw: sandbox.client().raw(),
            opening,
            tracker: Tracker::new(seen),
            inputs: stdin_offset.map(|_| inputs),
            unaccepted,
            events: sender,
            started,
        };
        Self {
            events,
            stdin: stdin_offset.map(|_| writer),
            control: Control::new(sandbox.clone(), id, is_started),
            seen,
            // It ends with its last event, with an error that it tells, or when nobody listens.
            task: tokio::spawn(driver.run(patience)),
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        self.control.id()
    }

    /// The next event; nothing after the last.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        let event = self.events.recv().await;
        self.note(event.as_ref());
        event
    }

    /// The writing side of its stdin: once, and only if stdin is open.
    pub fn stdin(&mut self) -> Option<Stdin> {
        self.stdin.take()
    }

    /// Signals and terminal size, usable while events are read elsewhere.
    #[must_use]
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// How much of each stream was given out by [`Exec::next`]: where another follower would go on.
    #[must_use]
    pub fn seen(&self) -> v1::ExecOffsets {
        self.seen
    }

    /// Waits for the program's end, and throws its output away.
    ///
    /// # Errors
    /// What ended the following.
    pub async fn wait(mut self) -> Result<Outcome> {
        loop {
            if let Some(outcome) = outcome(self.expect_next().await?) {
                return Ok(outcome);
            }
        }
    }

    /// Waits for the program's end and gives all that it wrote, which must fit into memory.
    ///
    /// # Errors
    /// What ended the following.
    pub async fn output(mut self) -> Result<Output> {
        let (mut stdout, mut stderr, mut lost) = (BytesMut::new(), BytesMut::new(), 0);
        loop {
            match self.expect_next().await? {
                Event::Output { stream, data, .. } => match stream {
                    OutputStream::Stdout => stdout.extend_from_slice(&data),
                    OutputStream::Stderr => stderr.extend_from_slice(&data),
                },
                Event::Gap { from, to, .. } => lost += to - from,
                event => {
                    if let Some(outcome) = outcome(event) {
                        return Ok(Output {
                            outcome,
                            stdout: stdout.freeze(),
                            stderr: stderr.freeze(),
                            lost,
                        });
                    }
                }
            }
        }
    }

    async fn expect_next(&mut self) -> Result<Event> {
        self.next().await.unwrap_or(Err(Error::NotFollowed))
    }

    fn note(&mut self, event: Option<&Result<Event>>) {
        let (stream, end) = match event {
            Some(Ok(Event::Output { stream, offset, data })) => (stream, offset + data.len() as u64),
            Some(Ok(Event::Gap { stream, to, .. })) => (stream, *to),
            _ => return,
        };
        match stream {
            OutputStream::Stdout => self.seen.stdout = end,
            OutputStream::Stderr => self.seen.stderr = end,
        }
    }
}

fn outcome(event: Event) -> Option<Outcome> {
    match event {
        Event::Exited(exit) => Some(Outcome::Exited(exit)),
        Event::StartFailed(failure) => Some(Outcome::StartFailed(failure)),
        _ => None,
    }
}

impl Stream for Exec {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let event = std::task::ready!(self.events.poll_recv(cx));
        self.note(event.as_ref());
        Poll::Ready(event)
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Attach ===

impl Attach {
    pub(crate) fn new(sandbox: &Sandbox, id: String) -> Self {
        Self {
            id,
            from: v1::ExecOffsets::default(),
            stdin: None,
            patience: sandbox.client().patience(),
            sandbox: sandbox.clone(),
        }
    }

    /// Leave out the bytes before these offsets.
    pub fn from(mut self, seen: v1::ExecOffsets) -> Self {
        self.from = seen;
        self
    }

    /// Go on writing its stdin at this offset, under the name of the writer that began it.
    pub fn stdin(mut self, writer: impl Into<String>, offset: u64) -> Self {
        self.stdin = Some((writer.into(), offset));
        self
    }

    /// Follows it. Never starts anything: an unknown id is EXEC_NOT_FOUND.
    ///
    /// Unless the sandbox's handle expects an incarnation, execs of earlier ones can be followed too, and a restart of
    /// the sandbox is told by the events: gaps, and an exit that is `lost`.
    pub fn follow(self) -> Exec {
        let (writer, offset) = match self.stdin {
            Some((writer, offset)) => (writer, Some(offset)),
            None => (String::new(), None),
        };
        let attach = v1::ExecAttach {
            sandbox: self.sandbox.name().into(),
            exec_id: self.id.clone(),
            expected_incarnation: self.sandbox.expected_incarnation().into(),
            auto_resume: self.sandbox.auto_resumes(),
            from: None,
            writer,
        };
        Exec::spawn(
            &self.sandbox,
            self.id,
            Opening::Attach(attach),
            self.from,
            offset,
            self.patience,
        )
    }

    /// Follows it from now on: only what it writes later is given.
    ///
    /// # Errors
    /// There is no such exec, or the server is out of reach.
    pub async fn follow_new(self) -> Result<Exec> {
        let info = self.sandbox.exec_info(&self.id).await?;
        Ok(self.from(info.written.unwrap_or_default()).follow())
    }
}
