//! A child on its way to become the program, for whoever may not block meanwhile.
//!
//! With `CLONE_VFORK` the kernel would hold the thread that starts a program until exec, however long a file system takes to
//! find it. Without, the child runs beside us in our memory, so what it runs on must outlive that. It holds a pipe open, which
//! the kernel closes when it has left our memory, by exec or by its end.

use std::{
    mem::ManuallyDrop,
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, fcntl_dupfd_cloexec, read, write},
    pipe::{PipeFlags, pipe_with},
    process::Pid,
};

use crate::{
    child::Plan,
    parked::Parking,
    spawn::{BlockedSignals, Command, SpawnError, Spawned},
    stack::Stack,
};

/// A child that is about to become the program. If this is dropped before the child was waited for, what it runs on is never
/// freed.
#[derive(Debug)]
pub struct Begun {
    /// The process id of both.
    pub pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// At its end once the child has left our memory.
    pub(crate) report: OwnedFd,
    pub(crate) memory: ManuallyDrop<Box<Memory>>,
    pub(crate) oom_score_adj: Option<i32>,
}

pub(crate) struct Memory {
    pub(crate) plan: Plan,
    stack: Stack,
}

// === impl Command ===

impl Command {
    /// Begins to start the program, in its cgroup. `None`: that can't be done without blocking, because there is no group to
    /// begin in or the kernel has no `clone3` for us.
    ///
    /// # Errors
    /// When no process can be made.
    pub fn begin(&self) -> Result<Option<Begun>, SpawnError> {
        self.begin_by(None)
    }

    pub(crate) fn begin_by(&self, parking: Option<Parking>) -> Result<Option<Begun>, SpawnError> {
        if self.cgroup.is_none() {
            return Ok(None);
        }
        let failed = |error: Errno| SpawnError::clone(error.into());
        let (report, mut held) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        if self.descriptor_3.is_some() {
            // The child gives that number to another.
            held = fcntl_dupfd_cloexec(&held, 4).map_err(failed)?;
        }
        let stack = Stack::new().map_err(SpawnError::clone)?;
        let mut plan = Plan::new(self);
        plan.parking = parking;
        let mut memory = ManuallyDrop::new(Box::new(Memory { plan, stack }));
        let Memory { plan, stack } = &mut **memory;
        let blocked = BlockedSignals::new();
        // SAFETY: `memory` is freed below, where no child was made, or by `outcome`.
        let cloned = unsafe { plan.begin_in_cgroup(stack, held.as_fd()) };
        drop(blocked);
        match cloned {
            Some(Ok((pid, pidfd))) => Ok(Some(Begun {
                pid,
                pidfd,
                report,
                memory,
                oom_score_adj: self.oom_score_adj,
            })),
            failed => {
                ManuallyDrop::into_inner(memory).stack.spare();
                failed.map_or(Ok(None), |failed| failed.map(|_| None).map_err(SpawnError::clone))
            }
        }
    }
}

// === impl Begun ===

impl Begun {
    /// Waits until it is the program.
    ///
    /// # Errors
    /// With the stage at which the child gave up; nothing is left of it then.
    pub fn wait(self) -> Result<Spawned, SpawnError> {
        while !matches!(read(&self.report, &mut [0; 1]), Ok(0)) {}
        // SAFETY: the report is at its end, so the child does not hold it any more.
        unsafe { self.outcome() }
    }

    /// # Safety
    /// The child has left our memory.
    unsafe fn outcome(self) -> Result<Spawned, SpawnError> {
        let Self {
            pid,
            pidfd,
            memory,
            oom_score_adj,
            ..
        } = self;
        // SAFETY: the caller's promise.
        unsafe { outcome(pid, memory) }?;
        if let Some(score) = oom_score_adj {
            set_oom_score(pid, score);
        }
        Ok(Spawned { pid, pidfd })
    }
}

/// Whether a child is the program. What it ran on is freed.
///
/// # Safety
/// It has left our memory.
pub(crate) unsafe fn outcome(pid: Pid, memory: ManuallyDrop<Box<Memory>>) -> Result<(), SpawnError> {
    let Memory { plan, stack } = *ManuallyDrop::into_inner(memory);
    stack.spare();
    plan.outcome(pid)
}

/// Sets a process's `oom_score_adj`. Best effort: it may have ended, and a sandbox without /proc still runs commands.
pub fn set_oom_score(pid: Pid, score: i32) {
    let path = format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero());
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let _ = file.and_then(|file| write(file, score.to_string().as_bytes()));
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}
