//! The part of a log's state that has to do with files: what is to be written, what was, what was found.

use super::{Batch, Entry, FILE_BYTES, Held, State};
use crate::{
    disk::{Chores, Disk, Location},
    segment::{Body, Span},
    types::{Mark, Offsets},
};

impl State {
    pub(super) fn first_in_memory(&self) -> usize {
        self.segments
            .partition_point(|entry| matches!(entry.held, Held::Disk(_)))
    }

    /// Whether closed segments wait in memory.
    pub(crate) fn has_unspilled(&self) -> bool {
        self.first_in_memory() < self.segments.len()
    }

    /// The oldest segments in memory, as many as it takes to free `bytes`.
    pub(crate) fn batch(&self, bytes: u64) -> Batch {
        let mut taken = 0;
        let entries = self.segments.range(self.first_in_memory()..).take_while(|entry| {
            let more = taken < bytes.min(FILE_BYTES);
            taken += entry.span.cost();
            more
        });
        let in_memory = entries.filter_map(|entry| match &entry.held {
            Held::Memory(body) => Some((entry.span, body.clone())),
            Held::Disk(_) => None,
        });
        in_memory.collect()
    }

    /// Whether the oldest segment in memory could not be written.
    pub(crate) fn is_stuck(&self) -> bool {
        let oldest = self.segments.get(self.first_in_memory()).map(|entry| entry.span.first);
        oldest.is_some() && oldest == self.unspillable && self.spilling_fails()
    }

    /// Age of the oldest bytes in memory.
    pub(crate) fn memory_age(&self) -> Option<u64> {
        match self.segments.get(self.first_in_memory()) {
            Some(entry) => Some(entry.stamp),
            None => (!self.open.is_empty()).then_some(self.open.stamp),
        }
    }

    /// Whether the last attempt failed, and nothing since then says that another would not.
    pub(crate) fn spilling_fails(&self) -> bool {
        self.failing == Some(self.budget.spills())
    }

    pub(crate) fn spilled(&mut self, span: &Span, location: Location) {
        self.failing = None;
        self.budget.note_spill();
        let live = self.files.entry(location.file).or_default();
        let index = self.segments.partition_point(|entry| entry.span.first < span.first);
        match self.segments.get_mut(index) {
            Some(entry) if entry.span.first == span.first => {
                *live += 1;
                entry.held = Held::Disk(location);
                self.budget.sub_memory(span.cost());
                self.unspillable.take_if(|first| *first == span.first);
            }
            // Dropped while it was being written.
            _ => self.chores_due |= *live == 0,
        }
    }

    /// Whether this is the log's first failure.
    pub(crate) fn spill_failed(&mut self, span: &Span) -> bool {
        self.failing = Some(self.budget.spills());
        self.unspillable = Some(span.first);
        !std::mem::replace(&mut self.warned, true)
    }

    // --- the lane ---

    pub(crate) fn lane_is_free(&self) -> bool {
        self.lane.is_some()
    }

    pub(crate) fn take_lane(&mut self) -> Option<Disk> {
        self.lane.take()
    }

    pub(crate) fn return_lane(&mut self, mut disk: Disk) {
        if self.ended {
            disk.close();
        }
        self.lane = Some(disk);
    }

    pub(crate) fn chores_due(&self) -> bool {
        self.chores_due
    }

    /// What is to be done on disk, for the holder of the lane.
    pub(crate) fn chores(&mut self, disk: &mut Disk) -> Option<Chores> {
        if !std::mem::take(&mut self.chores_due) {
            return None;
        }
        let delete: Vec<u64> = self
            .files
            .extract_if(.., |_, live| *live == 0)
            .map(|(number, _)| number)
            .collect();
        for number in &delete {
            disk.leave(*number);
        }
        // A log without files loses all with the process; unless it is flushed its heads are no better.
        let flushing = std::mem::take(&mut self.flushing);
        let heads = if disk.claimed() || flushing {
            self.heads.unsaved()
        } else {
            None
        };
        Some(Chores { delete, heads })
    }

    /// Has the next job save the heads.
    pub(crate) fn save_heads(&mut self) {
        self.chores_due = true;
        self.flushing = true;
    }

    pub(crate) fn heads_unsaved(&self) -> bool {
        self.heads.is_dirty()
    }

    pub(crate) fn absorb_head(&mut self, span: &Span, body: &Body) {
        self.heads.absorb(span, body);
        self.chores_due = true;
    }

    // --- recovery ---

    /// Takes a spilled segment of a former process over.
    pub(crate) fn adopt(&mut self, span: Span, location: Location) {
        *self.files.entry(location.file).or_default() += 1;
        self.retained += span.cost();
        self.budget.add_retained(span.cost());
        self.segments.push_back(Entry {
            span,
            held: Held::Disk(location),
            stamp: self.budget.tick(),
        });
        self.open.span = span.next();
    }

    /// Closes a recovered log at `written`, with the marks that it lacks.
    pub(crate) fn conclude(&mut self, written: Option<Offsets>) {
        let span = &mut self.open.span;
        span.end = span.end.max(written.unwrap_or_default());
        span.start = span.end;
        let was_ended = span.ended;
        if span.exited.is_none() {
            self.mark(Mark::Exited);
        }
        if !was_ended {
            self.mark(Mark::Ended);
        }
        self.ended = true;
    }
}
