//! The search of one open file: ripgrep's searcher with a sink that keeps the lines of the answer, within its limits.

use std::{fs::File, io};

use bytes::Bytes;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkFinish, SinkMatch,
};
use prost::Message as _;
use sandgate_proto::runtime::v1::{GrepLine, GrepOp};

/// What is kept of one line.
const MAX_LINE: usize = 64 * 1024;
/// A longer line is not held in memory: the file counts as unreadable.
const MAX_HEAP: usize = 32 * 1024 * 1024;
pub(super) const MAX_CONTEXT: u32 = 100;

/// How much of the answer one file may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Matching lines of a file; 0: no limit.
    pub(super) per_file: u64,
    /// Matching lines in all. One more is kept, to know that there was one.
    pub(super) total: u64,
    /// Bytes of the answer.
    pub(super) bytes: usize,
}

/// What was found in one file.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) lines: Vec<GrepLine>,
    pub(super) matches: u64,
    /// As encoded.
    pub(super) bytes: usize,
    /// There is more in the file than the limits let in.
    pub(super) cut: bool,
    binary: bool,
}

/// What is searched.
pub(super) enum Text<'a> {
    /// What is in a file that nothing was read of.
    In(&'a File),
    /// All that is in one.
    Whole(&'a [u8]),
}

/// What became of one file.
#[derive(Debug)]
pub(super) enum Outcome {
    Searched(Found),
    Binary,
}

struct Collector {
    limits: Limits,
    found: Found,
}

/// Compiles the pattern.
///
/// # Errors
/// Says what is wrong with it.
pub(super) fn matcher(op: &GrepOp) -> Result<RegexMatcher, String> {
    RegexMatcherBuilder::new()
        .case_insensitive(op.ignore_case)
        .fixed_strings(op.literal)
        .multi_line(true)
        .line_terminator(Some(b'\n'))
        .build(&op.pattern)
        .map_err(|error| error.to_string())
}

/// One for each thread: it holds the buffers.
pub(super) fn searcher(op: &GrepOp) -> Searcher {
    let context = context(op);
    SearcherBuilder::new()
        .before_context(context)
        .after_context(context)
        .line_number(true)
        .memory_map(MmapChoice::never())
        .heap_limit(Some(MAX_HEAP))
        .binary_detection(BinaryDetection::quit(0))
        .build()
}

/// Lines of context around a match.
pub(super) fn context(op: &GrepOp) -> usize {
    op.context.min(MAX_CONTEXT) as usize
}

/// Searches one file.
///
/// # Errors
/// What reading it said.
pub(super) fn search(
    searcher: &mut Searcher,
    matcher: &RegexMatcher,
    limits: Limits,
    text: Text<'_>,
) -> io::Result<Outcome> {
    let mut collector = Collector {
        limits,
        found: Found::default(),
    };
    match text {
        Text::In(file) => searcher.search_file(matcher, file, &mut collector)?,
        Text::Whole(whole) => searcher.search_slice(matcher, whole, &mut collector)?,
    }
    Ok(if collector.found.binary {
        Outcome::Binary
    } else {
        Outcome::Searched(collector.found)
    })
}

// === impl Collector ===

impl Collector {
    fn push(&mut self, number: Option<u64>, line: &[u8], context: bool) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = Bytes::copy_from_slice(&line[..line.len().min(MAX_LINE)]);
        let line = GrepLine {
            number: number.unwrap_or_default(),
            text,
            context,
        };
        self.found.bytes += encoded(&line);
        self.found.lines.push(line);
    }

    fn full(&self) -> bool {
        self.found.bytes > self.limits.bytes || self.found.matches > self.limits.total
    }
}

impl Sink for Collector {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        if self.full() || (self.limits.per_file != 0 && self.found.matches == self.limits.per_file) {
            self.found.cut = true;
            return Ok(false);
        }
        self.found.matches += 1;
        self.push(found.line_number(), found.bytes(), false);
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> Result<bool, io::Error> {
        // What stands before a match that is over the limit is not wanted either.
        let last = self.limits.per_file != 0 && self.found.matches == self.limits.per_file;
        if !(self.full() || last && *line.kind() == SinkContextKind::Before) {
            self.push(line.line_number(), line.bytes(), true);
        }
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> Result<bool, io::Error> {
        self.found.binary = true;
        Ok(false)
    }

    fn finish(&mut self, _: &Searcher, end: &SinkFinish) -> Result<(), io::Error> {
        self.found.binary |= end.binary_byte_offset().is_some();
        Ok(())
    }
}

/// Bytes of a line in an encoded answer: its own, a tag and a length.
pub(super) fn encoded(line: &GrepLine) -> usize {
    line.encoded_len() + 4
}
