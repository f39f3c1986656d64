//! One owner of waitpid.
//!
//! The runtime's children are the programs (or their keepers), each awaited by its own exec, and orphans that the kernel
//! gives to PID 1 or to a subreaper. Orphans are reaped here. The register keeps the two apart, also while a program is
//! being started and its pid is not known yet.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::Notify,
};

use crate::task;

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
}

/// A program is being started: nothing is reaped until this is dropped.
pub(crate) struct Starting(Children);

/// An awaited child, until it is dropped.
pub(crate) struct Awaited(Children, Pid);

// === impl Children ===

impl Children {
    /// Reaps orphans for as long as the process lives.
    pub(crate) fn reap_orphans(&self) -> std::io::Result<()> {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let mut ended = signal(SignalKind::child())?;
        let children = self.clone();
        task::spawn("reap orphans", "", async move {
            loop {
                tokio::select! {
                    _ = ended.recv() => {}
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
        let register = self.lock();
        if register.starting > 0 {
            return;
        }
        // An awaited one: whoever waits for it drops its `Awaited`, which brings us back here.
        while let Some(pid) = sandgate_sys::peek().filter(|pid| !register.awaited.contains(pid)) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
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

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.lock().starting -= 1;
        self.0.0.changed.notify_one();
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.lock().awaited.remove(&self.1);
        self.0.0.changed.notify_one();
    }
}
