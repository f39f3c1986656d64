//! Following a command from a command line: its output comes out, keys and signals go in.

use std::{io, process::ExitCode, time::Duration};

use bytes::BytesMut;
use sandgate::{Control, Error, Event, Exec, Outcome, Stdin};
use tokio::{
    io::AsyncReadExt as _,
    signal::unix::{SignalKind, signal},
    time::timeout,
};

use super::{
    exit,
    options::Options,
    signals::{self, PIPE, Signals},
    sink::Sink,
    terminal::{self, Raw},
};
use crate::cli::{
    Failure,
    output::{self, Format},
};

/// After this many signals nothing is waited for any more.
const ENOUGH: u32 = 3;
const CHUNK: usize = 64 << 10;
/// For telling a command that its reader is gone.
const FAREWELL: Duration = Duration::from_secs(5);

/// How to follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    format: Format,
    /// Pass stdin on.
    input: bool,
    /// The command is on a terminal.
    tty: bool,
    /// Signals and a closed stdout are the command's business. Otherwise they only end the following.
    ours: bool,
}

// === impl How ===

impl How {
    /// As a command of our own.
    pub(crate) fn interactive(options: &Options, format: Format) -> Self {
        Self {
            format,
            input: options.interactive,
            tty: options.tty,
            ours: true,
        }
    }

    /// Only look.
    pub(crate) fn looking(format: Format) -> Self {
        Self {
            format,
            input: false,
            tty: false,
            ours: false,
        }
    }
}

/// Follows a command to its end, and gives the code to exit with.
pub(crate) async fn attend(mut exec: Exec, how: How, signals: &mut Signals) -> Result<ExitCode, Failure> {
    let control = exec.control();
    let id = exec.id().to_owned();
    let stdin = exec.stdin().filter(|_| how.input);
    // Undone when this function is left, before anything is printed.
    let raw = (how.input && how.tty && how.format == Format::Text)
        .then(Raw::enter)
        .flatten();
    let ended = tokio::select! {
        ended = pump(&mut exec, how) => ended,
        signal = pass_on(signals, &control, how) => Ok(Ended::Left(signal)),
        never = feed(stdin) => never,
        never = resize(&control), if how.tty => never,
    };
    drop(raw);
    match ended {
        Ok(Ended::With(outcome)) => {
            if let Some(remark) = exit::remark(&outcome).filter(|_| how.format == Format::Text) {
                output::note(&remark);
            }
            Ok(ExitCode::from(exit::code(&outcome)))
        }
        Ok(Ended::Left(signal)) => {
            if how.ours {
                output::note(&format!("not waiting any longer: exec {id} runs on"));
            }
            Ok(ExitCode::from(exit::by_signal(signal)))
        }
        Err(Failure::Stdout(error)) if how.ours && error.kind() == io::ErrorKind::BrokenPipe => {
            // As in a pipeline here: who writes to nobody is told.
            _ = timeout(FAREWELL, control.signal(PIPE)).await;
            Ok(ExitCode::from(exit::by_signal(PIPE)))
        }
        Err(failure) => {
            if matches!(&failure, Failure::Client(error) if matches!(**error, Error::PatienceEnded { .. })) {
                output::note(&format!(
                    "exec {id} was not ended by this: see it with `sandgate follow`"
                ));
            }
            Err(failure)
        }
    }
}

/// Why following ended.
enum Ended {
    /// The command ended.
    With(Outcome),
    /// By that signal; the command did not.
    Left(i32),
}

/// Gives out events until the program has ended; when only looking, until its output has.
async fn pump(exec: &mut Exec, how: How) -> Result<Ended, Failure> {
    let mut sink = Sink::new(how.format);
    let id = exec.id().to_owned();
    let mut outcome = None;
    while let Some(event) = exec.next().await {
        let event = event?;
        sink.take(&id, &event).await?;
        match event {
            Event::Exited(exit) => outcome = Some(Outcome::Exited(exit)),
            Event::StartFailed(failure) => outcome = Some(Outcome::StartFailed(failure)),
            _ => continue,
        }
        if how.ours {
            break;
        }
    }
    outcome
        .map(Ended::With)
        .ok_or_else(|| Failure::incomplete("end of the exec"))
}

/// Passes signals on until there were too many of them, and gives the last.
async fn pass_on(signals: &mut Signals, control: &Control, how: How) -> i32 {
    let mut count = 0;
    loop {
        let signal = signals.next().await;
        count += 1;
        if !how.ours || count >= ENOUGH {
            return signal;
        }
        let control = control.clone();
        // Not waited for: the next signal may come while the server is out of reach.
        tokio::spawn(async move {
            match control.signal(signal).await {
                Err(error) if error.reason_name() != Some("EXEC_NOT_RUNNING") => {
                    output::note(&format!("can't pass {} on: {error}", signals::name(signal)));
                }
                _ => {}
            }
        });
    }
}

/// Passes stdin on to its end.
async fn feed<T>(stdin: Option<Stdin>) -> T {
    if let Some(mut stdin) = stdin {
        let mut input = tokio::io::stdin();
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK);
            match input.read_buf(&mut chunk).await {
                Ok(1..) if stdin.write(chunk.freeze()).await.is_ok() => {}
                // The command wants no more.
                Ok(1..) => break,
                // The end, or a terminal that is gone.
                Ok(0) | Err(_) => {
                    _ = stdin.close().await;
                    break;
                }
            }
        }
    }
    std::future::pending().await
}

/// Keeps the command's terminal as large as ours.
async fn resize<T>(control: &Control) -> T {
    if let Ok(mut changed) = signal(SignalKind::window_change()) {
        while changed.recv().await.is_some() {
            if let Some((columns, rows)) = terminal::size() {
                // A command that has ended has no terminal; everything else is told by its events.
                _ = control.resize(columns, rows).await;
            }
        }
    }
    std::future::pending().await
}
