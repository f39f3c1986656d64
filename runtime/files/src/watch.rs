//! Telling callers what changes beneath a directory.
//!
//! The kernel gives few inotify instances to all sandboxes of one user, so a runtime has one, made when it is first needed
//! and closed with its last subscriber. A thread reads it and hands events to the subscribers, each of which has a queue of
//! its own: one that does not keep up loses events, is told so, and holds up nobody.

mod events;
mod state;
mod subscriber;
mod tree;

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::inotify,
    io::Errno,
};
use sandgate_proto::{
    runtime::v1::{FileEvent, WatchFilesRequest, file_event::Kind},
    v1::ErrorReason,
};
use tokio::sync::mpsc::{self, error::TryRecvError};

use self::{
    events::Batch,
    state::State,
    subscriber::{Fate, Subscriber},
};
use crate::{
    error::{Error, Result},
    path::{self, PathArg},
    view::View,
};

/// Events that wait for one subscriber.
const QUEUE: usize = 1024;
/// The second half of a move follows the first at once, but perhaps not in the same read.
const MOVE_PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 2_000_000,
};

/// All watches of a runtime.
#[derive(Clone, Debug, Default)]
pub struct Watches {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// Subscribers that went away. They are not removed where they are dropped, because `state` may be held for long.
    leaving: Mutex<Leaving>,
}

#[derive(Debug, Default)]
struct Leaving {
    ids: Vec<u64>,
    live: Option<Arc<Live>>,
}

/// The inotify instance, and what wakes its reader for other reasons.
#[derive(Debug)]
struct Live {
    inotify: OwnedFd,
    wake: OwnedFd,
}

/// One caller's watch. Dropped, it ends.
#[derive(Debug)]
pub struct Subscription {
    id: u64,
    path: PathArg,
    inner: Arc<Inner>,
    events: mpsc::Receiver<FileEvent>,
    fate: Arc<Fate>,
    ended: AtomicBool,
}

// === impl Watches ===

impl Watches {
    /// Begins to watch a directory. Everything that happens from now on is reported, after `KIND_WATCHING`. It reads the
    /// whole tree for a recursive watch, so it is for a thread that may block.
    ///
    /// # Errors
    /// `WatchLimit`, or why the directory can't be opened.
    pub fn subscribe(&self, view: Arc<View>, request: &WatchFilesRequest) -> Result<Subscription> {
        self.subscribe_with(view, request, QUEUE)
    }

    fn subscribe_with(&self, view: Arc<View>, request: &WatchFilesRequest, queue: usize) -> Result<Subscription> {
        let path = view.path_or_start(&request.path, &request.path_raw)?;
        let mut state = self.inner.lock();
        // Before this thread acts as the user: the reader shall not be born as one.
        let live = self.live(&mut state)?;
        let (sender, events) = mpsc::channel(queue.max(1));
        let fate = Arc::new(Fate::default());
        let subscriber = Subscriber::new(view, path.clone(), request.recursive, sender, fate.clone());
        let id = state.add(subscriber, &live).inspect_err(|_| wake(&live))?;
        Ok(Subscription {
            id,
            path,
            inner: self.inner.clone(),
            events,
            fate,
            ended: AtomicBool::new(false),
        })
    }

    fn live(&self, state: &mut State) -> Result<Arc<Live>> {
        if let Some(live) = &state.live {
            return Ok(live.clone());
        }
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let live = Arc::new(Live {
            inotify: inotify::init(flags).map_err(limit)?,
            wake: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(limit)?,
        });
        let (inner, reader) = (self.inner.clone(), live.clone());
        thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || inner.read(&reader))
            .map_err(|error| Error::new(ErrorReason::WatchLimit, format!("no thread for watching: {error}")))?;
        state.live = Some(live.clone());
        self.inner.leaving().live = Some(live.clone());
        Ok(live)
    }
}

// === impl Inner ===

impl Inner {
    /// The reader's thread.
    fn read(&self, live: &Arc<Live>) {
        let mut batch = Batch::default();
        loop {
            let mut ready = [
                PollFd::new(&live.inotify, PollFlags::IN),
                PollFd::new(&live.wake, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            let mut counter = [0; 8];
            let _drained = rustix::io::read(&live.wake, &mut counter);
            batch.read(&live.inotify);
            if batch.has_half_move() {
                let mut more = [PollFd::new(&live.inotify, PollFlags::IN)];
                if poll(&mut more, Some(&MOVE_PATIENCE)) == Ok(1) {
                    batch.read(&live.inotify);
                }
            }
            let mut state = self.lock();
            state.handle(&mut batch, live);
            if !is_ready(&live.inotify) {
                state.caught_up();
            }
            let ids = std::mem::take(&mut self.leaving().ids);
            for id in ids {
                state.remove(id, live);
            }
            if state.close_if_unused() {
                self.leaving().live = None;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leaving(&self) -> MutexGuard<'_, Leaving> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Subscription ===

impl Subscription {
    /// The next event; `None` after the directory is gone. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<FileEvent> {
        loop {
            match self.events.try_recv() {
                Ok(event) => return Some(event),
                // What was lost comes after what was queued before the loss.
                Err(_) if self.fate.take_lost() => return Some(event(Kind::Overflow)),
                Err(TryRecvError::Disconnected) => {
                    let first = !self.ended.swap(true, Ordering::Relaxed);
                    return (first && self.fate.gone()).then(|| self.root_gone());
                }
                Err(TryRecvError::Empty) => {}
            }
            if let Some(event) = self.events.recv().await {
                return Some(event);
            }
        }
    }
}

impl Subscription {
    fn root_gone(&self) -> FileEvent {
        let (path, path_raw) = path::twins(self.path.as_bytes());
        FileEvent {
            path,
            path_raw,
            directory: true,
            ..event(Kind::RootGone)
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut leaving = self.inner.leaving();
        leaving.ids.push(self.id);
        if let Some(live) = &leaving.live {
            wake(live);
        }
    }
}

fn event(kind: Kind) -> FileEvent {
    FileEvent {
        kind: kind.into(),
        ..FileEvent::default()
    }
}

fn is_ready(inotify: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(inotify, PollFlags::IN)], Some(&Timespec::default())) != Ok(0)
}

fn wake(live: &Live) {
    // It can only fail when it is woken already.
    let _woken = rustix::io::write(&live.wake, &1_u64.to_ne_bytes());
}

/// The kernel's ways to say that there are too many.
fn limit(errno: Errno) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::NOMEM => {
            Error::new(ErrorReason::WatchLimit, "the kernel has no more file watches to give")
        }
        errno => errno.into(),
    }
}

#[cfg(test)]
mod tests;
