//! The progress bar: on stderr, and only if that is a terminal.

use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const KNOWN: &str = "{wide_msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
const UNKNOWN: &str = "{wide_msg} {spinner} {bytes} {bytes_per_sec}";

/// How far a transfer is. Clones show on the same bar.
#[derive(Clone, Debug)]
pub(super) struct Progress(ProgressBar);

// === impl Progress ===

impl Progress {
    /// Begins, with the size if it is known.
    pub(super) fn new(what: &str, size: Option<u64>) -> Self {
        let target = match io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(size, target);
        let template = if size.is_some() { KNOWN } else { UNKNOWN };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(super::output::clean(what).into_owned());
        Self(bar)
    }

    /// Shows nothing, where something else is shown on the same terminal.
    pub(super) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// More bytes went.
    pub(super) fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// Takes the bar away, so that what follows stands on a clean line.
    pub(super) fn end(&self) {
        self.0.finish_and_clear();
    }
}
