//! Signals by name and number, and those that this process is sent.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::Failure;

/// The numbers of Linux on x86 and ARM, which the contract uses.
const NAMES: [(&str, i32); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", PIPE),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];
const LAST: i32 = 64;

/// What a program gets whose reader is gone.
pub(crate) const PIPE: i32 = 13;

/// Reads a signal: `TERM`, `SIGTERM`, `term` or `15`.
pub(crate) fn number(text: &str) -> Result<i32, String> {
    let upper = text.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMES.iter().find(|(name, _)| *name == bare).map(|(_, number)| *number);
    named
        .or_else(|| text.parse().ok().filter(|number| (1..=LAST).contains(number)))
        .ok_or_else(|| format!("expected a name such as TERM, or a number from 1 to {LAST}"))
}

/// A signal's name without `SIG`, or its number.
pub(crate) fn name(number: i32) -> String {
    let named = NAMES.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// Those signals that are passed on to a command. Their default, to end this process, is off from here on.
#[derive(Debug)]
pub(crate) struct Signals {
    hangup: Signal,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
}

// === impl Signals ===

impl Signals {
    /// Begins to listen.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::all().map_err(Failure::local("can't listen to signals"))
    }

    fn all() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next one's number. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> i32 {
        let kind = tokio::select! {
            Some(()) = self.hangup.recv() => SignalKind::hangup(),
            Some(()) = self.interrupt.recv() => SignalKind::interrupt(),
            Some(()) = self.quit.recv() => SignalKind::quit(),
            Some(()) = self.terminate.recv() => SignalKind::terminate(),
            else => std::future::pending().await,
        };
        kind.as_raw_value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_or_numbered() {
        for (text, expected) in [
            ("TERM", 15),
            ("SIGKILL", 9),
            ("int", 2),
            ("sigusr1", 10),
            ("1", 1),
            ("64", 64),
        ] {
            assert_eq!(number(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "65", "-9", "SIG", "TERMINATE", "9.0"] {
            assert!(number(text).is_err(), "{text}");
        }
        for (text, signal) in NAMES {
            assert_eq!((number(text), name(signal).as_str()), (Ok(signal), text));
        }
        assert_eq!(name(40), "40");
    }
}
