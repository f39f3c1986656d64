//! Who gives way when a bound is exceeded.
//!
//! After each append the writer of that log brings things back under the bounds, step by step, and waits where a
//! step takes time:
//! 1. The log's own bound: its oldest segments are dropped, or, if it holds, its followers waited for.
//! 2. The store's bound: the oldest segments of logs that have ended, in the order in which they ended, then its own.
//! 3. Memory: its own closed segments are spilled, then those of the log with the oldest bytes in memory, then its
//!    own open one. What cannot be written is dropped, ended logs first here too.
//!
//! A log never loses its open segment. So with every bound exceeded by others a log still has that much.

use std::sync::Arc;

use crate::{
    log::{Inner, Job},
    state::{Shed, State},
    store::Store,
};

enum Step {
    /// Within all bounds, or nothing that could be done.
    Done,
    /// Something was done at once; look again.
    Again,
    Job(Job),
    /// Until the log's `room` is notified.
    Wait,
}

impl Store {
    pub(crate) async fn relieve(&self, log: &Arc<Inner>) {
        if !self.is_pressed(&log.lock()) {
            return;
        }
        loop {
            let room = log.room.notified();
            match self.step(log) {
                Step::Done => return,
                Step::Again => {}
                // How it went is in the state.
                Step::Job(job) => drop(job.await),
                Step::Wait => room.await,
            }
        }
    }

    fn is_pressed(&self, state: &State) -> bool {
        let budget = self.budget();
        state.retains_too_much() || state.chores_due() || budget.retains_too_much() || budget.memory_excess() > 0
    }

    fn step(&self, log: &Arc<Inner>) -> Step {
        let own_bound = |state: &mut State| {
            if state.retains_too_much() {
                state.shed()
            } else {
                Shed::Nothing
            }
        };
        if let Some(step) = shed_step(log, own_bound) {
            return step;
        }
        if self.budget().retains_too_much()
            && let Some(step) = self.shed_ended(State::shed).or_else(|| shed_step(log, State::shed))
        {
            return step;
        }
        if self.budget().memory_excess() > 0
            && let Some(step) = self.free_memory(log)
        {
            return step;
        }
        let mut state = log.lock();
        if state.chores_due()
            && let Some(job) = log.start(&mut state, Vec::new())
        {
            return Step::Job(job);
        }
        Step::Done
    }

    /// Drops a segment of the log that ended first and has one to give.
    fn shed_ended(&self, shed: fn(&mut State) -> Shed) -> Option<Step> {
        self.ended().iter().find_map(|log| match shed_step(log, shed)? {
            Step::Wait => None,
            Step::Again => {
                let mut state = log.lock();
                let job = if state.chores_due() {
                    log.start(&mut state, Vec::new())
                } else {
                    None
                };
                Some(job.map_or(Step::Again, Step::Job))
            }
            step => Some(step),
        })
    }

    fn free_memory(&self, log: &Arc<Inner>) -> Option<Step> {
        let mut state = log.lock();
        if state.has_unspilled() {
            if !state.lane_is_free() {
                return Some(Step::Wait);
            }
            if !state.is_stuck() {
                let batch = state.batch(self.budget().memory_excess());
                return log.start(&mut state, batch).map(Step::Job);
            }
            drop(state);
            return self
                .spill_another(log)
                .or_else(|| self.shed_ended(State::shed_memory))
                .or_else(|| shed_step(log, State::shed_memory));
        }
        drop(state);
        self.spill_another(log).or_else(|| self.spill_open(log))
    }

    /// Spills the log, other than this one, that has the oldest bytes in memory.
    fn spill_another(&self, log: &Arc<Inner>) -> Option<Step> {
        let others = self.logs().into_iter().filter(|other| !Arc::ptr_eq(log, other));
        let candidates = others.filter_map(|other| {
            let state = other.lock();
            let age = state
                .memory_age()
                .filter(|_| state.lane_is_free() && !state.spilling_fails());
            drop(state);
            Some((age?, other))
        });
        let (_, oldest) = candidates.min_by_key(|(age, _)| *age)?;
        let mut state = oldest.lock();
        state.seal();
        let batch = state.batch(u64::MAX);
        Some(oldest.start(&mut state, batch).map_or(Step::Again, Step::Job))
    }

    fn spill_open(&self, log: &Arc<Inner>) -> Option<Step> {
        // Whoever is being spilled already makes room soon; short segments are worth avoiding.
        let others_spill = self
            .logs()
            .iter()
            .any(|other| !Arc::ptr_eq(log, other) && !other.lock().lane_is_free());
        let mut state = log.lock();
        if others_spill || state.open.is_empty() || state.spilling_fails() || !state.lane_is_free() {
            return None;
        }
        state.seal();
        Some(Step::Again)
    }
}

/// Tries to drop a segment. `None` if there is none to drop.
fn shed_step(log: &Arc<Inner>, shed: impl FnOnce(&mut State) -> Shed) -> Option<Step> {
    let shed = shed(&mut log.lock());
    match shed {
        Shed::Dropped => Some(Step::Again),
        Shed::ReadFirst(span, location) => Some(Step::Job(log.start_saving_head(span, location))),
        Shed::Held => Some(Step::Wait),
        Shed::Nothing => None,
    }
}

#[cfg(test)]
mod tests;
