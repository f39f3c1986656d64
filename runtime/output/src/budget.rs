//! The bytes that all logs of a store hold together.
//!
//! Counters only: who has to give way when they are exceeded is decided in `relief`.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::types::StoreLimits;

#[derive(Debug)]
pub(crate) struct Budget {
    limits: StoreLimits,
    memory: AtomicU64,
    retained: AtomicU64,
    clock: AtomicU64,
    spills: AtomicU64,
}

// === impl Budget ===

impl Budget {
    pub(crate) fn new(limits: StoreLimits) -> Self {
        let [memory, retained, clock, spills] = [const { AtomicU64::new(0) }; 4];
        Budget {
            limits,
            memory,
            retained,
            clock,
            spills,
        }
    }

    /// Bytes in memory beyond the limit.
    pub(crate) fn memory_excess(&self) -> u64 {
        self.memory
            .load(Ordering::Acquire)
            .saturating_sub(self.limits.memory_bytes)
    }

    /// Whether more is kept than the limit allows.
    pub(crate) fn retains_too_much(&self) -> bool {
        self.retained.load(Ordering::Acquire) > self.limits.retain_bytes
    }

    pub(crate) fn add_memory(&self, cost: u64) {
        self.memory.fetch_add(cost, Ordering::AcqRel);
    }

    pub(crate) fn sub_memory(&self, cost: u64) {
        self.memory.fetch_sub(cost, Ordering::AcqRel);
    }

    pub(crate) fn add_retained(&self, cost: u64) {
        self.retained.fetch_add(cost, Ordering::AcqRel);
    }

    pub(crate) fn sub_retained(&self, cost: u64) {
        self.retained.fetch_sub(cost, Ordering::AcqRel);
    }

    /// A number that orders segments of different logs by age.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that a segment was written.
    pub(crate) fn note_spill(&self) {
        self.spills.fetch_add(1, Ordering::AcqRel);
    }

    /// Segments written so far. When this changes, the disk works.
    pub(crate) fn spills(&self) -> u64 {
        self.spills.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn retained(&self) -> u64 {
        self.retained.load(Ordering::Acquire)
    }
}
