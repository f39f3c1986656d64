//! The threads of one search, and the queue between the walk and them.
//!
//! The queue is short: what lies in it holds descriptors, and what was searched ahead of the answer's end is wasted. When
//! it is full, the walking thread searches too, so that it never waits for the others.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZero,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, Scope},
};

use super::{
    Batch, Job, Worker,
    merge::{BatchOutcome, Merger},
};
use crate::view::View;

const MAX_QUEUE: usize = 16;
const MAX_THREADS: usize = 8;
/// A tree with fewer batches is searched faster than threads are started.
const BATCHES_ALONE: u64 = 4;

/// The threads of one search.
pub(super) struct Pool<'a> {
    job: &'a Job,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: VecDeque<(u64, Batch)>,
    /// No more batches will come.
    closed: bool,
    /// The answer is full.
    full: bool,
    merger: Merger,
    /// The batch that the answer goes on with.
    next: u64,
    /// Outcomes that came before their turn.
    early: BTreeMap<u64, BatchOutcome>,
}

/// The side of the walk.
pub(super) struct Feeder<'pool, 'scope, 'env> {
    pool: &'pool Pool<'env>,
    view: &'scope View,
    scope: &'scope Scope<'scope, 'pool>,
    worker: Worker,
    given: u64,
    /// This one and those that help. 0: not yet known.
    threads: usize,
}

// === impl Pool ===

impl<'a> Pool<'a> {
    /// A pool without threads.
    pub(super) fn new(job: &'a Job, merger: Merger) -> Self {
        let state = State {
            queue: VecDeque::new(),
            closed: false,
            full: false,
            merger,
            next: 0,
            early: BTreeMap::new(),
        };
        Self {
            job,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Searches what `walk` gives, and returns the answer.
    pub(super) fn run(self, view: &View, walk: impl FnOnce(&mut Feeder<'_, '_, '_>)) -> Merger {
        thread::scope(|scope| {
            let mut feeder = Feeder {
                pool: &self,
                view,
                scope,
                worker: self.job.worker(),
                given: 0,
                threads: 0,
            };
            walk(&mut feeder);
            self.lock().closed = true;
            self.changed.notify_all();
            self.work(&mut feeder.worker);
        });
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).merger
    }

    /// Searches until nothing is left.
    fn work(&self, worker: &mut Worker) {
        loop {
            let mut state = self.lock();
            let (sequence, batch) = loop {
                if state.full {
                    return;
                }
                if let Some(next) = state.queue.pop_front() {
                    break next;
                }
                if state.closed {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            self.search(worker, sequence, batch);
        }
    }

    fn search(&self, worker: &mut Worker, sequence: u64, batch: Batch) {
        let outcome = self.job.search_batch(worker, batch);
        self.lock().put(sequence, outcome);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn put(&mut self, sequence: u64, outcome: BatchOutcome) {
        self.early.insert(sequence, outcome);
        while let Some(outcome) = self.early.remove(&self.next) {
            self.next += 1;
            if !self.merger.take(outcome) {
                self.full = true;
                self.queue.clear();
                self.early.clear();
            }
        }
    }
}

// === impl Feeder ===

impl<'scope> Feeder<'_, 'scope, '_> {
    /// Takes the next batch of the walk. `false` if no more is wanted.
    pub(super) fn give(&mut self, batch: Batch) -> bool {
        let sequence = self.given;
        self.given += 1;
        if sequence == BATCHES_ALONE {
            self.start_threads();
        }
        if self.threads <= 1 {
            self.pool.search(&mut self.worker, sequence, batch);
            return !self.pool.lock().full;
        }
        let mut state = self.pool.lock();
        state.queue.push_back((sequence, batch));
        self.pool.changed.notify_one();
        let own = if state.queue.len() > MAX_QUEUE {
            state.queue.pop_front()
        } else {
            None
        };
        let full = state.full;
        drop(state);
        if let Some((sequence, batch)) = own {
            self.pool.search(&mut self.worker, sequence, batch);
        }
        !full
    }

    fn start_threads(&mut self) {
        self.threads = 1;
        let wanted = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
        for _ in 1..wanted {
            let (pool, view) = (self.pool, self.view);
            let started = thread::Builder::new()
                .name("grep".to_owned())
                .spawn_scoped(self.scope, move || {
                    // A thread that can't act as the user leaves the work to the others.
                    let Ok(_acting) = view.act() else { return };
                    pool.work(&mut pool.job.worker());
                });
            // Without more threads it takes longer, and that is all.
            self.threads += usize::from(started.is_ok());
        }
    }
}
