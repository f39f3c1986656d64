//! Finding text in files: ripgrep's matcher and searcher over our own descriptor-based walk.
//!
//! The walk hands out batches of files in the order of their paths. In a small tree the calling thread searches them
//! itself; in a large one others help. Outcomes are put together in the order of the batches, so that the answer does
//! not depend on how the threads raced, and the search ends as soon as the answer is full.

mod filter;
mod ignores;
mod merge;
mod pool;
mod search;

use std::{fs::File, os::fd::OwnedFd, sync::Arc};

use grep_regex::RegexMatcher;
use grep_searcher::Searcher;
use rustix::{
    fs::{self, FileType, Mode, OFlags, Stat},
    io::{pread, retry_on_intr},
};
use sandgate_proto::{
    runtime::v1::{GrepOp, GrepResult},
    v1::ErrorReason,
};

use self::{
    filter::Filter,
    merge::{BatchOutcome, Merger},
    pool::Pool,
    search::{Limits, Outcome, Text},
};
use crate::{
    error::{Error, Result},
    path::PathArg,
    view::View,
    walk::{Options, Step, Walker},
};

const DEFAULT_TOTAL: u32 = 1_000;
const MAX_TOTAL: u32 = 100_000;
const BATCH: usize = 16;
/// As large as what the searcher holds of a file. It looks through as much for the NUL that makes a file binary.
const SMALL: usize = 64 << 10;

/// What all threads of one search share.
struct Job {
    op: GrepOp,
    matcher: RegexMatcher,
    limits: Limits,
    start: PathArg,
}

/// What each thread has of its own: buffers, and a matcher, whose caches threads would otherwise wait for.
struct Worker {
    searcher: Searcher,
    matcher: RegexMatcher,
    /// Holds a small file.
    buffer: Vec<u8>,
}

/// Some files of the walk, in order.
#[derive(Default)]
struct Batch {
    files: Vec<Candidate>,
    /// Directories that could not be read on the way here.
    unreadable: u64,
}

/// A file to be searched.
struct Candidate {
    dir: Arc<OwnedFd>,
    /// Relative to the start.
    path: Vec<u8>,
    /// Where the name begins in `path`.
    name: usize,
}

/// Searches a file or a tree, for at most `budget` bytes of answer.
///
/// # Errors
/// `PatternInvalid`, or why the start can't be opened. What can't be read beneath it is counted.
pub fn run(view: &View, op: GrepOp, budget: usize) -> Result<GrepResult> {
    let invalid = |fault| Error::new(ErrorReason::PatternInvalid, fault);
    if op.pattern.is_empty() {
        return Err(invalid("the pattern is empty".to_owned()));
    }
    let matcher = search::matcher(&op).map_err(invalid)?;
    let filter = Filter::new(&op).map_err(invalid)?;
    let total = if op.max_total == 0 { DEFAULT_TOTAL } else { op.max_total };
    if total > MAX_TOTAL {
        return Err(Error::invalid(format!("max_total is more than {MAX_TOTAL}")));
    }
    if op.context > search::MAX_CONTEXT {
        return Err(Error::invalid(format!("context is more than {}", search::MAX_CONTEXT)));
    }
    let limits = Limits {
        per_file: op.max_per_file.into(),
        total: total.into(),
        bytes: budget,
    };
    let start = view.path_or_start(&op.path, &op.path_raw)?;
    let job = Job {
        op,
        matcher,
        limits,
        start,
    };
    let _acting = view.act()?;
    match view.open_directory(&job.start) {
        Ok(directory) => job.search_tree(view, directory, filter),
        Err(error) if error.reason == ErrorReason::FileNotDirectory => job.search_one(view),
        Err(error) => Err(error),
    }
}

// === impl Worker ===

impl Worker {
    /// `stat` is what the kernel says of the file, of which nothing was read yet.
    fn search(&mut self, limits: Limits, file: &File, stat: &Stat) -> std::io::Result<Outcome> {
        let text = read_small(&mut self.buffer, file, stat).map_or(Text::In(file), Text::Whole);
        search::search(&mut self.searcher, &self.matcher, limits, text)
    }
}

// === impl Job ===

impl Job {
    fn worker(&self) -> Worker {
        Worker {
            searcher: search::searcher(&self.op),
            matcher: self.matcher.clone(),
            buffer: Vec::new(),
        }
    }

    fn search_one(&self, view: &View) -> Result<GrepResult> {
        let (file, stat) = view.open_regular(&self.start)?;
        let outcome = self
            .worker()
            .search(self.limits, &File::from(file), &stat)
            .map_err(|error| Error::io(error, &self.start))?;
        let mut batch = BatchOutcome::default();
        batch.add(Vec::new(), outcome);
        let mut merger = Merger::new(self.limits, search::context(&self.op), self.start.clone());
        merger.take(batch);
        Ok(merger.finish())
    }

    fn search_tree(&self, view: &View, directory: OwnedFd, mut filter: Filter) -> Result<GrepResult> {
        let options = Options {
            sorted: true,
            max_depth: 0,
        };
        let mut walker = Walker::new(directory, options).map_err(|error| Error::io(error, &self.start))?;
        let merger = Merger::new(self.limits, search::context(&self.op), self.start.clone());
        let merger = Pool::new(self, merger).run(view, |pool| {
            while let Some(batch) = next_batch(&mut walker, &mut filter) {
                if !pool.give(batch) {
                    break;
                }
            }
        });
        Ok(merger.finish())
    }

    fn search_batch(&self, worker: &mut Worker, batch: Batch) -> BatchOutcome {
        let mut outcome = BatchOutcome::default();
        outcome.unreadable += batch.unreadable;
        for file in batch.files {
            match self.search_file(worker, &file) {
                Ok(Some(found)) => outcome.add(file.path, found),
                Ok(None) => {}
                Err(_) => outcome.unreadable += 1,
            }
            // What comes after it will not be in the answer.
            if outcome.bytes > self.limits.bytes || outcome.matches > self.limits.total {
                break;
            }
        }
        outcome
    }

    /// `None` if it is no regular file, or gone, by now.
    fn search_file(&self, worker: &mut Worker, file: &Candidate) -> std::io::Result<Option<Outcome>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = match fs::openat(&file.dir, &file.path[file.name..], flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = fs::fstat(&opened)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        worker.search(self.limits, &File::from(opened), &stat).map(Some)
    }
}

/// All of a small file, by one read: the searcher would read its first three bytes, then the others, and then twice nothing.
/// `None`: it is not small, not what the kernel said of it, or can't be read so.
fn read_small<'a>(buffer: &'a mut Vec<u8>, file: &File, stat: &Stat) -> Option<&'a [u8]> {
    let size = usize::try_from(stat.st_size).ok();
    let size = size.filter(|size| (1..SMALL).contains(size))?;
    buffer.resize(SMALL, 0);
    let read = retry_on_intr(|| pread(file, &mut buffer[..], 0)).ok()?;
    (read == size).then_some(&buffer[..size])
}

/// `None` at the end of the walk.
fn next_batch(walker: &mut Walker, filter: &mut Filter) -> Option<Batch> {
    let mut batch = Batch::default();
    while batch.files.len() < BATCH {
        match walker.next() {
            Some(Step::Entry(entry)) if entry.kind == FileType::RegularFile => {
                if filter.takes(&entry) {
                    batch.files.push(Candidate {
                        dir: entry.dir.clone(),
                        path: entry.path.to_vec(),
                        name: entry.path.len() - entry.name.count_bytes(),
                    });
                }
            }
            Some(Step::Entry(_)) => {}
            Some(Step::Enter(entry)) => {
                if !filter.enters(&entry) {
                    walker.skip();
                }
            }
            Some(Step::Unreadable { .. }) => batch.unreadable += 1,
            None => return (!batch.files.is_empty() || batch.unreadable > 0).then_some(batch),
        }
    }
    Some(batch)
}

#[cfg(test)]
mod tests;
