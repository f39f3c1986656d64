//! Puts the outcomes of batches together in the order of paths, up to the limits of the answer.

use sandgate_proto::runtime::v1::{GrepFile, GrepLine, GrepResult};

use super::search::{self, Found, Limits, Outcome};
use crate::path::{self, PathArg};

/// What was found in the files of one batch, in their order.
#[derive(Default)]
pub(super) struct BatchOutcome {
    files: Vec<(Vec<u8>, Found)>,
    pub(super) matches: u64,
    pub(super) bytes: usize,
    searched: u64,
    binary: u64,
    pub(super) unreadable: u64,
    cut: bool,
}

/// The answer as it grows.
pub(super) struct Merger {
    limits: Limits,
    context: usize,
    start: PathArg,
    matches: u64,
    bytes: usize,
    full: bool,
    result: GrepResult,
}

// === impl BatchOutcome ===

impl BatchOutcome {
    /// Adds what became of the next file.
    pub(super) fn add(&mut self, path: Vec<u8>, outcome: Outcome) {
        let found = match outcome {
            Outcome::Binary => {
                self.binary += 1;
                return;
            }
            Outcome::Searched(found) => found,
        };
        self.searched += 1;
        self.cut |= found.cut;
        self.matches += found.matches;
        self.bytes += found.bytes;
        if !found.lines.is_empty() {
            self.files.push((path, found));
        }
    }
}

// === impl Merger ===

impl Merger {
    /// An empty answer.
    pub(super) fn new(limits: Limits, context: usize, start: PathArg) -> Self {
        Self {
            limits,
            context,
            start,
            matches: 0,
            bytes: 0,
            full: false,
            result: GrepResult::default(),
        }
    }

    /// Adds the next batch. `false` if the answer has no room for more.
    pub(super) fn take(&mut self, batch: BatchOutcome) -> bool {
        if self.full {
            return false;
        }
        self.result.files_searched += batch.searched;
        self.result.files_binary += batch.binary;
        self.result.files_unreadable += batch.unreadable;
        self.result.truncated |= batch.cut;
        for (path, found) in batch.files {
            if !self.file(&path, found) {
                self.full = true;
                self.result.truncated = true;
                break;
            }
        }
        !self.full
    }

    /// The answer.
    pub(super) fn finish(self) -> GrepResult {
        self.result
    }

    /// `false` if not all of it had room.
    fn file(&mut self, path: &[u8], mut found: Found) -> bool {
        let room = self.limits.total - self.matches;
        let whole = found.matches <= room;
        if !whole {
            trim(&mut found.lines, room, self.context);
        }
        let (path, path_raw) = if path.is_empty() {
            path::twins(self.start.as_bytes())
        } else {
            path::twins(path::bytes(&self.start.join(path)))
        };
        let mut bytes = self.bytes + path.len() + path_raw.len() + 12;
        let fits = found.lines.iter().take_while(|line| {
            bytes += search::encoded(line);
            bytes <= self.limits.bytes
        });
        let fits = fits.count();
        let all = fits == found.lines.len();
        found.lines.truncate(fits);
        self.bytes = bytes;
        self.matches += found.lines.iter().filter(|line| !line.context).count() as u64;
        if found.lines.iter().any(|line| !line.context) {
            let lines = found.lines;
            self.result.files.push(GrepFile { path, path_raw, lines });
        }
        whole && all
    }
}

/// Keeps the first `matches` matches and the context that belongs to them.
fn trim(lines: &mut Vec<GrepLine>, matches: u64, context: usize) {
    let mut kept = 0;
    let mut last = None;
    let end = lines.iter().position(|line| {
        if !line.context {
            kept += 1;
            if kept > matches {
                return true;
            }
            last = Some(line.number);
        }
        kept == matches && line.context && last.is_none_or(|last| line.number > last + context as u64)
    });
    lines.truncate(end.unwrap_or(lines.len()));
    if matches == 0 {
        lines.clear();
    }
}
