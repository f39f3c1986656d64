//! The process tree of one exec: found, signalled and killed whole, however its processes hide.

mod cgroup;
mod descent;

use std::{collections::HashSet, io, os::fd::OwnedFd, time::Duration};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use sandgate_sys::send_signal;

pub(crate) use self::{
    cgroup::{ExecGroup, Roots},
    descent::{Descent, children_of},
};

/// Everything that one exec started.
#[derive(Debug)]
pub(crate) enum Tree {
    /// Held by a cgroup: the kernel knows who belongs to it.
    Group(ExecGroup),
    /// Held by a keeper: whoever descends from it belongs to it.
    Kept(Descent),
}

/// How long to wait between two rounds of killing. Killed processes need a moment to be gone.
const ROUND: Duration = Duration::from_millis(2);
const LONGEST_ROUND: Duration = Duration::from_millis(100);
const CHASES: usize = 100;

// === impl Tree ===

impl Tree {
    /// Sends a signal to every process once. Answers how many got it.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<u32> {
        let open = |pid: Pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?));
        let opened: Vec<(Pid, OwnedFd)> = self.processes()?.into_iter().filter_map(open).collect();
        // A pidfd can't come to mean another process. That its number still meant one of ours is seen by asking again.
        let ours: HashSet<Pid> = self.processes()?.into_iter().collect();
        let reached = opened
            .iter()
            .filter(|(pid, pidfd)| ours.contains(pid) && send_signal(pidfd, signal).is_ok());
        Ok(u32::try_from(reached.count()).unwrap_or(u32::MAX))
    }

    /// Asks every process to end. One that is stopped is woken, so that it can.
    pub(crate) fn terminate(&self) -> io::Result<u32> {
        let reached = self.signal(Signal::TERM.as_raw())?;
        self.signal(Signal::CONT.as_raw())?;
        Ok(reached)
    }

    /// Kills until nothing is left. Answers how many processes were there at first.
    pub(crate) async fn kill(&self) -> io::Result<u32> {
        let first = u32::try_from(self.processes()?.len()).unwrap_or(u32::MAX);
        let mut pause = ROUND;
        while !self.is_empty() {
            match self {
                Self::Group(group) => {
                    group.kill()?;
                    // The stroke goes to first threads. Where that one has ended alone, the others miss it.
                    self.signal(Signal::KILL.as_raw())?;
                }
                Self::Kept(descent) => {
                    descent.wake_keeper();
                    self.stop_and_kill()?;
                    chase(descent);
                }
            }
            tokio::time::sleep(pause).await;
            // What is still there may be out of our reach, or in the kernel for long.
            pause = (pause * 2).min(LONGEST_ROUND);
        }
        Ok(first)
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Group(group) => !group.populated(),
            Self::Kept(descent) => descent.is_empty(),
        }
    }

    /// Gives back what the kernel holds for the tree, once it is empty.
    pub(crate) fn release(&self) {
        match self {
            Self::Group(group) => group.release(),
            Self::Kept(descent) => descent.release(),
        }
    }

    /// Processes that the kernel killed for memory, if it counts them.
    pub(crate) fn out_of_memory(&self) -> u32 {
        match self {
            Self::Group(group) => group.out_of_memory(),
            Self::Kept(_) => 0,
        }
    }

    fn processes(&self) -> io::Result<Vec<Pid>> {
        match self {
            Self::Group(group) => group.processes(),
            Self::Kept(descent) => descent.processes(),
        }
    }

    /// Stops all before killing any: a tree that can't fork can't outrun us.
    fn stop_and_kill(&self) -> io::Result<()> {
        let mut before = 0;
        loop {
            let stopped = self.signal(Signal::STOP.as_raw())?;
            if stopped <= before {
                break;
            }
            before = stopped;
        }
        self.signal(Signal::KILL.as_raw())?;
        Ok(())
    }
}

/// Kills processes that are gone before a list of all could be made: each forks the next and ends.
fn chase(descent: &Descent) {
    for _ in 0..CHASES {
        let children = descent.children();
        if children.is_empty() {
            return;
        }
        // The youngest last, and it is the one that still runs.
        for pid in children.into_iter().rev() {
            if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty())
                && descent.holds(pid)
            {
                let _ = send_signal(&pidfd, Signal::KILL.as_raw());
            }
        }
    }
}
