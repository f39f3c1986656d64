//! The log of one command: its public face, and the jobs that work on its files.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::{
    sync::Notify,
    task::{JoinHandle, spawn_blocking},
};

use crate::{
    disk::{self, Disk, Location},
    follower::Follower,
    segment::Span,
    state::{Batch, State},
    store::Store,
    types::{FollowFrom, Mark, Offsets, Stream},
};

/// The output of one command. Clones are handles of the same log.
#[derive(Clone, Debug)]
pub struct Log {
    inner: Arc<Inner>,
    store: Store,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) id: String,
    pub(crate) dir: PathBuf,
    state: Mutex<State>,
    /// There is something new to follow. Like `room`, always notified with `notify_waiters`: that reaches all who asked
    /// before, polled or not, so whoever asks first and looks then misses nothing.
    pub(crate) news: Notify,
    /// The lane was returned, or a follower moved on: whoever waits for either looks again.
    pub(crate) room: Notify,
}

/// A disk job that was started. It runs to its end whether or not somebody waits for it.
pub(crate) type Job = JoinHandle<io::Result<()>>;

// === impl Log ===

impl Log {
    pub(crate) fn new(inner: Arc<Inner>, store: Store) -> Self {
        Log { inner, store }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The id under which the store keeps this log.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Adds bytes to a stream. Ignored once the log has ended.
    ///
    /// The bytes are in the log as soon as this future was polled for the first time. What it then waits for is room:
    /// the spill's disk write, and, in a log that holds, the followers that would lose bytes. So it can be dropped at
    /// any time; the next call goes on waiting in its place.
    pub async fn append(&self, stream: Stream, bytes: Bytes) {
        if !self.inner.lock().push(stream, bytes) {
            tracing::debug!(log = self.inner.id, "output after the end of its log ignored");
            return;
        }
        self.inner.news.notify_waiters();
        self.store.relieve(&self.inner).await;
    }

    /// Makes nobody wait for followers any more; what they would lose is kept, beyond the bounds. For a log that has
    /// little to come.
    pub fn release(&self) {
        self.inner.lock().release();
        self.inner.room.notify_waiters();
    }

    /// Sets a control point after what was written so far. [`Mark::Ended`] closes the log. Repeats are ignored.
    pub fn mark(&self, mark: Mark) {
        if !self.inner.lock().mark(mark) {
            return;
        }
        if mark == Mark::Ended {
            self.store.note_ended(&self.inner);
        }
        self.inner.news.notify_waiters();
    }

    /// A new follower. One that does not `wait` finishes at what is now the end of the log.
    pub fn follow(&self, from: FollowFrom, wait: bool) -> Follower {
        Follower::new(self.inner.clone(), from, wait)
    }

    /// How much was written to each stream so far, retained or not.
    pub fn written(&self) -> Offsets {
        self.inner.lock().written()
    }

    /// The first retained byte of each stream.
    pub fn oldest(&self) -> Offsets {
        self.inner.lock().oldest()
    }

    /// How many newlines were written to a stream so far.
    ///
    /// # Caveats
    /// After a recovery, those in lost bytes are not counted.
    pub fn newlines(&self, stream: Stream) -> u64 {
        self.inner.lock().newlines(stream)
    }

    /// Whether [`Mark::Ended`] was set.
    pub fn is_ended(&self) -> bool {
        self.inner.lock().ended()
    }

    /// Writes everything to files, so that it outlives this process. It does not sync them: the machine's own end is
    /// not provided for.
    ///
    /// # Errors
    /// What could not be written stays in memory.
    pub async fn flush(&self) -> io::Result<()> {
        loop {
            let room = self.inner.room.notified();
            match self.inner.start_flush() {
                Flush::Done => return Ok(()),
                Flush::Busy => room.await,
                Flush::Started(job) => job.await.map_err(io::Error::other)??,
            }
        }
    }
}

// === impl Inner ===

enum Flush {
    Done,
    Busy,
    Started(Job),
}

impl Inner {
    pub(crate) fn new(id: String, dir: PathBuf, state: State) -> Self {
        Inner {
            id,
            dir,
            state: Mutex::new(state),
            news: Notify::new(),
            room: Notify::new(),
        }
    }

    /// No code that holds this lock can panic halfway through a change, so a poisoned one is as good as any.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_flush(self: &Arc<Self>) -> Flush {
        let mut state = self.lock();
        if state.removed() {
            return Flush::Done;
        }
        if !state.lane_is_free() {
            return Flush::Busy;
        }
        state.seal();
        let batch = state.batch(u64::MAX);
        if batch.is_empty() && !state.heads_unsaved() {
            return Flush::Done;
        }
        state.save_heads();
        self.start(&mut state, batch).map_or(Flush::Busy, Flush::Started)
    }

    /// Starts a job that writes segments and does what else is due on disk. `None` if one is running.
    pub(crate) fn start(self: &Arc<Self>, state: &mut State, batch: Batch) -> Option<Job> {
        let disk = state.take_lane()?;
        let inner = self.clone();
        Some(spawn_blocking(move || inner.work(disk, batch)))
    }

    /// Runs on a blocking thread, and commits there, so that nothing depends on who waits for it.
    fn work(&self, mut disk: Disk, batch: Batch) -> io::Result<()> {
        let spilled = self.spill(&mut disk, batch);
        self.do_chores(&mut disk);
        let removed = self.return_lane(disk);
        self.room.notify_waiters();
        spilled.and(removed)
    }

    fn spill(&self, disk: &mut Disk, batch: Batch) -> io::Result<()> {
        for (span, body) in batch {
            match disk.write(&span, &body) {
                Ok(location) => self.lock().spilled(&span, location),
                Err(error) => {
                    if self.lock().spill_failed(&span) {
                        tracing::warn!(log = self.id, %error, "output could not be spilled; some may be dropped early");
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn do_chores(&self, disk: &mut Disk) {
        loop {
            let Some(chores) = self.lock().chores(disk) else { return };
            disk.perform(chores);
        }
    }

    /// A job for a removed log deletes its directory last. The remover starts such a job if none runs.
    fn return_lane(&self, mut disk: Disk) -> io::Result<()> {
        let removed = if self.lock().removed() { disk.remove() } else { Ok(()) };
        self.lock().return_lane(disk);
        removed
    }

    /// Starts to set the first bytes of a spilled segment aside, for it is about to be dropped.
    pub(crate) fn start_saving_head(self: &Arc<Self>, span: Span, location: Location) -> Job {
        let inner = self.clone();
        spawn_blocking(move || {
            inner.save_head(&span, location);
            Ok(())
        })
    }

    pub(crate) fn save_head(&self, span: &Span, location: Location) {
        let read = disk::read(&self.dir, location, span);
        let mut state = self.lock();
        match read {
            Ok(body) => state.absorb_head(span, &body),
            Err(error) if state.heads.wants(span) => {
                tracing::warn!(log = self.id, %error, "the beginning of an output could not be kept");
                state.heads.give_up();
            }
            // Somebody else was quicker.
            Err(_) => {}
        }
    }

    /// Drops everything, ends the log and deletes its files.
    pub(crate) async fn remove(self: &Arc<Self>) -> io::Result<()> {
        self.lock().clear();
        self.news.notify_waiters();
        self.room.notify_waiters();
        let job = loop {
            let room = self.room.notified();
            let started = self.start(&mut self.lock(), Batch::new());
            match started {
                Some(job) => break job,
                None => room.await,
            }
        };
        job.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests;
