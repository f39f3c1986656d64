//! Who watches what, and what an event means to whom.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use rustix::fs::inotify::{self, ReadFlags};

use super::{
    Live,
    events::{Batch, Report},
    subscriber::{Added, Subscriber},
};
use crate::error::Result;

/// All subscribers.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) live: Option<Arc<Live>>,
    subscribers: HashMap<u64, Subscriber>,
    /// Subscribers of each watch: two that overlap share the kernel's watch.
    users: HashMap<i32, Vec<u64>>,
    next_id: u64,
}

/// The other half of a move.
#[derive(Clone, Copy)]
struct MovedTo<'a> {
    wd: i32,
    name: &'a [u8],
}

// === impl State ===

impl State {
    /// Adds a subscriber and watches its directories.
    pub(super) fn add(&mut self, mut subscriber: Subscriber, live: &Live) -> Result<u64> {
        let id = self.next_id;
        self.next_id += 1;
        match subscriber.start(live) {
            Ok(added) => {
                self.subscribers.insert(id, subscriber);
                self.note(id, added, live);
                Ok(id)
            }
            Err(error) => {
                let watches = subscriber.tree.watches().collect();
                self.release(id, watches, live);
                Err(error)
            }
        }
    }

    /// Removes a subscriber, and the watches that nobody else uses.
    pub(super) fn remove(&mut self, id: u64, live: &Live) {
        if let Some(subscriber) = self.subscribers.remove(&id) {
            self.release(id, subscriber.tree.watches().collect(), live);
        }
    }

    /// Lets go of the inotify instance when there are no subscribers.
    pub(super) fn close_if_unused(&mut self) -> bool {
        let unused = self.subscribers.is_empty();
        if unused {
            self.live = None;
            self.users.clear();
        }
        unused
    }

    /// The kernel has nothing more to say for now.
    pub(super) fn caught_up(&mut self) {
        self.subscribers.values_mut().for_each(Subscriber::caught_up);
    }

    /// Hands out what was read.
    pub(super) fn handle(&mut self, batch: &mut Batch, live: &Live) {
        self.subscribers.values_mut().for_each(Subscriber::new_batch);
        // Moves that were reported whole: where their second half is, and to whom.
        let mut whole = HashSet::new();
        for (at, report) in batch.reports.iter().enumerate() {
            if report.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.overflow(live);
                continue;
            }
            let to = report
                .flags
                .contains(ReadFlags::MOVED_FROM)
                .then(|| batch.moved_to(at))
                .flatten();
            for id in self.users.get(&report.wd).cloned().unwrap_or_default() {
                if whole.contains(&(at, id)) {
                    continue;
                }
                let half = to.map(|to| MovedTo {
                    wd: batch.reports[to].wd,
                    name: &batch.reports[to].name,
                });
                if self.report(id, report, half, live)
                    && let Some(to) = to
                {
                    whole.insert((to, id));
                }
            }
        }
        batch.reports.clear();
    }

    /// One report for one subscriber. `true` if it was the whole of a move.
    fn report(&mut self, id: u64, report: &Report, to: Option<MovedTo<'_>>, live: &Live) -> bool {
        let Some(subscriber) = self.subscribers.get_mut(&id) else {
            return false;
        };
        let (wd, flags, name) = (report.wd, report.flags, report.name.as_slice());
        let directory = flags.contains(ReadFlags::ISDIR);
        let ends = ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED;
        if flags.intersects(ends) {
            if subscriber.tree.is_root(wd) {
                subscriber.gone();
                self.remove(id, live);
            } else if flags.contains(ReadFlags::IGNORED) {
                let removed = subscriber.tree.remove(wd);
                self.release(id, removed, live);
            }
        } else if name.is_empty() {
            // About a directory itself: its parent's watch says the same.
        } else if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            subscriber.created(wd, name, directory);
            self.appeared(id, wd, name, directory, live);
        } else if flags.contains(ReadFlags::MOVED_FROM) {
            return self.moved(id, report, to, live);
        } else if flags.contains(ReadFlags::DELETE) {
            subscriber.deleted(wd, name, directory);
            self.disappeared(id, wd, name, live);
        } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            subscriber.modified(wd, name, directory);
        }
        false
    }

    fn moved(&mut self, id: u64, report: &Report, to: Option<MovedTo<'_>>, live: &Live) -> bool {
        let Some(subscriber) = self.subscribers.get_mut(&id) else {
            return false;
        };
        let directory = report.flags.contains(ReadFlags::ISDIR);
        let Some(to) = to.filter(|to| subscriber.tree.contains(to.wd)) else {
            subscriber.deleted(report.wd, &report.name, directory);
            self.disappeared(id, report.wd, &report.name, live);
            return false;
        };
        subscriber.moved((report.wd, &report.name), (to.wd, to.name), directory);
        let moved = subscriber.tree.child(report.wd, &report.name);
        let replaced = subscriber
            .tree
            .child(to.wd, to.name)
            .filter(|replaced| Some(*replaced) != moved);
        let released = replaced
            .map(|replaced| subscriber.tree.remove(replaced))
            .unwrap_or_default();
        match moved {
            Some(moved) => subscriber.tree.rename(moved, to.wd, to.name),
            // It was not watched so far: made and moved in one go.
            None if directory => self.appeared(id, to.wd, to.name, true, live),
            None => {}
        }
        self.release(id, released, live);
        true
    }

    fn appeared(&mut self, id: u64, wd: i32, name: &[u8], directory: bool, live: &Live) {
        if let Some(subscriber) = self.subscribers.get_mut(&id).filter(|_| directory) {
            let added = subscriber.adopt(live, wd, name);
            self.note(id, added, live);
        }
    }

    fn disappeared(&mut self, id: u64, wd: i32, name: &[u8], live: &Live) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else {
            return;
        };
        if let Some(child) = subscriber.tree.child(wd, name) {
            let removed = subscriber.tree.remove(child);
            self.release(id, removed, live);
        }
    }

    fn overflow(&mut self, live: &Live) {
        let ids: Vec<u64> = self.subscribers.keys().copied().collect();
        for id in ids {
            if let Some(subscriber) = self.subscribers.get_mut(&id) {
                let added = subscriber.recover(live);
                self.note(id, added, live);
            }
        }
    }

    fn note(&mut self, id: u64, added: Added, live: &Live) {
        for wd in added.watches {
            let users = self.users.entry(wd).or_default();
            if !users.contains(&id) {
                users.push(id);
            }
        }
        self.release(id, added.replaced, live);
    }

    /// These watches are not the subscriber's any more.
    fn release(&mut self, id: u64, watches: Vec<i32>, live: &Live) {
        for wd in watches {
            let users = self.users.entry(wd).or_default();
            users.retain(|user| *user != id);
            if users.is_empty() {
                self.users.remove(&wd);
                // The kernel may have removed it already.
                let _removed = inotify::remove_watch(&live.inotify, wd);
            }
        }
    }
}
