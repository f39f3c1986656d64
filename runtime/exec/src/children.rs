//! One owner of waitpid.
//!
//! The runtime's children are the programs (or their keepers), each awaited by its own exec, and orphans that the kernel
//! gives to PID 1 or to a subreaper. Orphans are reaped here. The register keeps the two apart, also while a program is
//! being started and its pid is not known yet.

use std::{
    collections::HashSet,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};
use sandgate_sys::readiness;
use tokio::sync::Notify;

use crate::{task, tree::children_of};

/// Who is awaited by whom.
#[derive(Clone, Default)]
pub(crate) struct Children(Arc<Inner>);

#[derive(Default)]
struct Inner {
    register: Mutex<Register>,
    changed: Notify,
}

#[derive(Default)]
struct Register {
    starting: usize,
    awaited: HashSet<Pid>,
    /// Somebody was left alone because of these two: there may be more to do when one of them changes.
    put_off: bool,
}

/// A program is being started: nothing is reaped until this is dropped.
pub(crate) struct Starting(Children);

/// An awaited child, until it is dropped.
pub(crate) struct Awaited(Children, Pid);

/// What a descriptor of signals gives for each.
const SIGNAL_BYTES: usize = 128;
const STRAY_ROUND: Duration = Duration::from_millis(2);

// === impl Children ===

impl Children {
    /// Reaps orphans for as long as the process lives, whenever the descriptor of their signals says so.
    pub(crate) fn reap_orphans(&self, ended: OwnedFd) -> std::io::Result<()> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let ended = readiness(ended)?;
        let children = self.clone();
        task::spawn("reap orphans", "", async move {
            loop {
                tokio::select! {
                    Ok(mut news) = ended.readable() => {
                        // One stands for all that have come.
                        let _ = rustix::io::read(ended.get_ref(), &mut [0; SIGNAL_BYTES]);
                        news.clear_ready();
                    }
                    () = children.0.changed.notified() => {}
                }
                children.reap();
            }
        });
        Ok(())
    }

    pub(crate) fn starting(&self) -> Starting {
        self.lock().starting += 1;
        Starting(self.clone())
    }

    fn reap(&self) {
        // Held throughout, so that no program can be started, end and be taken for an orphan in between.
        let mut register = self.lock();
        if register.starting > 0 {
            register.put_off = true;
            return;
        }
        while let Some(pid) = sandgate_sys::peek() {
            // Whoever waits for it drops its `Awaited`, which brings us back here.
            if register.awaited.contains(&pid) {
                register.put_off = true;
                return;
            }
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }

    /// Changes the register, and sees to what had to wait for that.
    fn change(&self, change: impl FnOnce(&mut Register)) {
        let mut register = self.lock();
        change(&mut register);
        if std::mem::take(&mut register.put_off) {
            self.0.changed.notify_one();
        }
    }

    /// Kills what a keeper left that was killed itself: children of ours that nobody awaits. Theirs come to us in turn.
    pub(crate) async fn kill_strays(&self) {
        while self.signal_strays() {
            tokio::time::sleep(STRAY_ROUND).await;
        }
    }

    /// As `kill_strays`, for a thread that may block.
    pub(crate) fn kill_strays_now(&self) {
        while self.signal_strays() {
            std::thread::sleep(STRAY_ROUND);
        }
    }

    /// Answers whether there are, or may be, any.
    fn signal_strays(&self) -> bool {
        // Held throughout, as in `reap`. Nobody else waits for them, so their numbers can't come to mean others.
        let register = self.lock();
        if register.starting > 0 {
            return true;
        }
        let strays = children_of(getpid())
            .into_iter()
            .filter(|pid| !register.awaited.contains(pid));
        strays.filter(|pid| kill_process(*pid, Signal::KILL).is_ok()).count() > 0
    }

    fn lock(&self) -> MutexGuard<'_, Register> {
        self.0.register.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Starting ===

impl Starting {
    pub(crate) fn await_child(&self, pid: Pid) -> Awaited {
        self.0.lock().awaited.insert(pid);
        Awaited(self.0.clone(), pid)
    }
}

// === impl Awaited ===

impl Awaited {
    pub(crate) fn children(&self) -> &Children {
        &self.0
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.change(|register| register.starting -= 1);
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.change(|register| _ = register.awaited.remove(&self.1));
    }
}
