//! Where a follower stands.
//!
//! The offsets alone decide what a follower still gets: a byte below them is skipped, a jump above them is a gap.
//! The place (a sequence) only says where to look next. That makes any offsets a valid beginning, also ones that
//! never were a common point of both streams.

use crate::types::{Item, Mark, Offsets, Stream};

#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    /// No record before this one has anything left for the follower.
    pub(crate) place: u64,
    /// Next byte wanted of each stream.
    pub(crate) at: Offsets,
    /// The end, for a follower that does not wait.
    pub(crate) stop: Option<Stop>,
    exited: bool,
}

/// The end of the log as it was when the follower came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    pub(crate) offsets: Offsets,
    pub(crate) sequence: u64,
    pub(crate) ended: bool,
}

// === impl Cursor ===

impl Cursor {
    pub(crate) fn new(place: u64, at: Offsets, stop: Option<Stop>) -> Self {
        Cursor {
            place,
            at,
            stop,
            exited: false,
        }
    }

    /// First offset of a stream that this cursor will never hand out.
    pub(crate) fn limit(&self, stream: Stream) -> u64 {
        self.stop.map_or(u64::MAX, |stop| stop.offsets[stream])
    }

    /// The stop, once all bytes before it were handed out.
    pub(crate) fn stopped(&self) -> Option<Stop> {
        self.stop.filter(|stop| self.at.covers(&stop.offsets))
    }

    /// Passes over everything below `start`, one gap at a time.
    pub(crate) fn gap_to(&mut self, start: &Offsets) -> Option<Item> {
        Stream::ALL.into_iter().find_map(|stream| {
            let from = self.at[stream];
            let to = start[stream].min(self.limit(stream));
            if from >= to {
                return None;
            }
            self.at[stream] = to;
            Some(Item::Gap { stream, from, to })
        })
    }

    /// Hands out the exit mark at `sequence`, once.
    pub(crate) fn pass_exited(&mut self, sequence: u64) -> Option<Item> {
        if self.exited || self.stop.is_some_and(|stop| sequence >= stop.sequence) {
            return None;
        }
        self.exited = true;
        Some(Item::Mark(Mark::Exited))
    }

    /// Whether dropping the bytes before `end` takes something from this cursor.
    pub(crate) fn would_lose(&self, end: &Offsets) -> bool {
        Stream::ALL
            .into_iter()
            .any(|stream| self.at[stream] < end[stream].min(self.limit(stream)))
    }
}
