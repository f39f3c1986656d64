//! The plain values that callers hand in and get back.

use std::ops::{Index, IndexMut};

use bytes::Bytes;

/// No [`Item::Data`] holds more bytes than this.
pub(crate) const MAX_ITEM: u64 = 64 * 1024;

/// Which of a command's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output; also everything of a command whose streams are merged.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A byte offset in each stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offsets {
    /// Offset in standard output.
    pub stdout: u64,
    /// Offset in standard error.
    pub stderr: u64,
}

/// What to do when a log is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Drop the oldest bytes. A follower that still wanted them gets a gap.
    #[default]
    DropOldest,
    /// Keep the writer waiting while an attached follower would lose bytes.
    Hold,
}

/// Bounds over all logs of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreLimits {
    /// Bytes that may lie in memory; more is spilled to files.
    pub memory_bytes: u64,
    /// Bytes kept at all, in memory and in files.
    pub retain_bytes: u64,
}

/// How one log behaves.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Bytes that this log may keep, in memory and in files. Each record counts 16 bytes beside its own.
    pub retain_bytes: u64,
    /// What to do when that, or the store's bound, is reached.
    pub on_full: OnFull,
    /// First bytes of each stream that stay available to [`Log::excerpt`](crate::Log::excerpt) after they were
    /// dropped from the log. They lie in memory, beside the store's budget, from the first drop on.
    pub head_bytes: u64,
}

/// A control point that has its place in the order of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// The command exited; a child of it may go on writing.
    Exited,
    /// Both streams are at their end: nothing follows.
    Ended,
}

/// Where a follower begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// At the first byte ever written; if that was dropped the follower begins with a gap.
    Start,
    /// At what is written next.
    End,
    /// At these offsets. Beyond the end of a stream means: skip until there.
    Offsets(Offsets),
}

/// What a follower receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Bytes of one stream, at most 64 KiB.
    Data {
        /// Number of the record the bytes begin in. Never decreases; two items may share one.
        sequence: u64,
        /// The stream they were written to.
        stream: Stream,
        /// Offset of the first byte in that stream.
        offset: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// Bytes `from..to` of a stream are no longer to be had.
    Gap {
        /// The stream that lacks them.
        stream: Stream,
        /// Offset of the first missing byte.
        from: u64,
        /// Offset of the next byte that may follow.
        to: u64,
    },
    /// A control point.
    Mark(Mark),
}

// === impl Stream ===

impl Stream {
    /// Both streams, in the order in which gaps are reported.
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];
}

// === impl Offsets ===

impl Offsets {
    /// Both streams together.
    pub fn total(&self) -> u64 {
        self.stdout + self.stderr
    }

    /// Whether both streams are at or past `other`.
    pub(crate) fn covers(&self, other: &Offsets) -> bool {
        self.stdout >= other.stdout && self.stderr >= other.stderr
    }

    pub(crate) fn max(self, other: Offsets) -> Offsets {
        Offsets {
            stdout: self.stdout.max(other.stdout),
            stderr: self.stderr.max(other.stderr),
        }
    }
}

impl Index<Stream> for Offsets {
    type Output = u64;

    fn index(&self, stream: Stream) -> &u64 {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }
}

impl IndexMut<Stream> for Offsets {
    fn index_mut(&mut self, stream: Stream) -> &mut u64 {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}
