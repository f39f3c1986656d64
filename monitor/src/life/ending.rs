//! How PID 1 ended, and what it left.

use std::{
    fs,
    io::{self, Read as _, Seek as _},
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, wait};

use crate::{layout, status::Cause};

/// How much of the log is told when PID 1 fails at once.
const LAST_WORDS: u64 = 400;
/// How long what was left may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a runtime that exited by itself did so.
pub(super) fn why_it_exited(code: Option<i32>) -> (Cause, String) {
    let word = fs::read_to_string(Path::new(layout::RUNTIME).join("ended")).unwrap_or_default();
    match (code, word.trim()) {
        (Some(0), "deadline") => (Cause::Deadline, "its deadline was reached".to_owned()),
        (Some(0), "idle") => (Cause::Idle, "its idle limit was reached".to_owned()),
        (Some(0), "stopped") => (Cause::Stopped, "it was suspended".to_owned()),
        (Some(0), "signal") => (Cause::Stopped, "its runtime was told to end by a signal".to_owned()),
        (code, _) => {
            let code = code.map_or_else(|| "an unknown code".to_owned(), |code| format!("code {code}"));
            (
                Cause::Crashed,
                format!("its runtime ended with {code}: {}", last_words()),
            )
        }
    }
}

fn last_words() -> String {
    let mut tail = Vec::new();
    if let Ok(mut log) = fs::File::open(layout::LOG) {
        let length = log.metadata().map_or(0, |about| about.len());
        let _ = log.seek(io::SeekFrom::Start(length.saturating_sub(LAST_WORDS)));
        let _ = log.take(LAST_WORDS).read_to_end(&mut tail);
    }
    String::from_utf8_lossy(&tail).trim().to_owned()
}

/// Plain processes that a runtime left were handed to us: they end with it.
pub(super) fn end_orphans() {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for child in own_children()
            .split_whitespace()
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        {
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

fn own_children() -> String {
    let pid = std::process::id();
    fs::read_to_string(format!("/proc/self/task/{pid}/children")).unwrap_or_default()
}
