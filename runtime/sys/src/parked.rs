//! A child that waits to be told which program to become.
//!
//! Most of what a start costs is the same for every program: the clone, the session, the cgroups, the descriptors. A child
//! that has all of it behind it is kept for the next one. It waits as who we are, in our memory and with none of our
//! descriptors: a user's program could trace it if it had that user's rights, and it would hold open what we close.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

use rustix::process::{Signal, pidfd_send_signal};

use crate::{
    begun::Begun,
    child::Plan,
    raw::syscall,
    spawn::{Command, SpawnError, Stage},
};

/// A child that waits. If this is dropped, it waits until we end.
#[derive(Debug)]
pub struct Parked(Begun);

/// Where it waits, in its plan.
pub(crate) struct Parking {
    /// What the child is told, and tells us.
    gate: AtomicU32,
    /// What it is to do next. Set before it is told to go.
    rest: OnceLock<Box<Plan>>,
    /// Our process id.
    parent: i32,
}

const WAIT: u32 = 0;
const GO: u32 = 1;
/// Said by the child, who is on its way.
const LEFT: u32 = 2;

// === impl Command ===

impl Command {
    /// Makes a child that waits to be told the program, with this command's stdio and in its cgroup. Nothing else of the
    /// command is looked at. `None`: as `begin`.
    ///
    /// # Errors
    /// When no process can be made.
    pub fn park(&self) -> Result<Option<Parked>, SpawnError> {
        let parking = Parking {
            gate: AtomicU32::new(WAIT),
            rest: OnceLock::new(),
            parent: rustix::process::getpid().as_raw_nonzero().get(),
        };
        Ok(self.begin_by(Some(parking))?.map(Parked))
    }
}

// === impl Parked ===

impl Parked {
    /// Its process id, which will be the program's.
    #[must_use]
    pub fn pid(&self) -> rustix::process::Pid {
        self.0.pid
    }

    /// Tells it to become the program. If it was killed meanwhile, it ends with [`Stage::Parked`] and nothing was done.
    #[must_use]
    pub fn go(self, command: &Command) -> Begun {
        let Self(mut begun) = self;
        begun.oom_score_adj = command.oom_score_adj;
        // Somebody in the sandbox may have stopped it.
        let _ = pidfd_send_signal(&begun.pidfd, Signal::CONT);
        let plan = &begun.memory.plan;
        if let Some(parking) = &plan.parking {
            let _ = parking.rest.set(Box::new(plan.rest(command)));
            parking.open();
        }
        begun
    }

    /// Ends it; it is gone when it has finished, as one that was killed.
    #[must_use]
    pub fn leave(self) -> Begun {
        let _ = pidfd_send_signal(&self.0.pidfd, Signal::KILL);
        self.0
    }
}

// === impl Parking ===

impl Parking {
    fn open(&self) {
        self.gate.store(GO, Ordering::Release);
        let wake = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
        // SAFETY: the kernel only takes the address, of a word that outlives the call.
        unsafe { syscall(libc::SYS_futex, [self.gate.as_ptr() as usize, wake, 1, 0, 0]) };
    }

    /// Whether the child has begun with what it was told.
    pub(crate) fn is_left(&self) -> bool {
        self.gate.load(Ordering::Acquire) == LEFT
    }

    /// Makes the child end when we do.
    ///
    /// # Safety
    /// Only in that child.
    pub(crate) unsafe fn stay_with_parent(&self) -> Result<(), (Stage, isize)> {
        // SAFETY: plain system calls on numbers.
        let parent = unsafe {
            die_with_parent(libc::SIGKILL);
            syscall(libc::SYS_getppid, [0; 5])
        };
        // It may have ended before.
        match parent == self.parent as isize {
            true => Ok(()),
            false => Err((Stage::Parked, -(libc::ESRCH as isize))),
        }
    }

    /// Waits to be told the rest.
    ///
    /// # Safety
    /// As `stay_with_parent`.
    pub(crate) unsafe fn wait(&self) -> Result<&Plan, (Stage, isize)> {
        let wait = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
        while self.gate.load(Ordering::Acquire) == WAIT {
            let args = [self.gate.as_ptr() as usize, wait, WAIT as usize, 0, 0];
            // SAFETY: the word outlives the call.
            unsafe { syscall(libc::SYS_futex, args) };
        }
        let rest = self.rest.get().ok_or((Stage::Parked, -(libc::ESRCH as isize)))?;
        self.gate.store(LEFT, Ordering::Release);
        // SAFETY: plain system calls on numbers and locals. A program does not end with us, but with its sandbox.
        unsafe {
            die_with_parent(0);
            forget_signals();
        }
        Ok(rest)
    }
}

/// Drops what was sent to the child while it waited: that was not meant for the program.
///
/// # Safety
/// Only in a child of ours, with all signals blocked.
unsafe fn forget_signals() {
    let (all, at_once) = (u64::MAX, [0i64; 2]);
    let args = [
        &raw const all as usize,
        0,
        at_once.as_ptr() as usize,
        size_of_val(&all),
        0,
    ];
    // SAFETY: both locals outlive the calls.
    while unsafe { syscall(libc::SYS_rt_sigtimedwait, args) } > 0 {}
}

/// # Safety
/// Only in a child of ours.
unsafe fn die_with_parent(signal: i32) {
    // SAFETY: a plain system call on numbers.
    unsafe {
        syscall(
            libc::SYS_prctl,
            [libc::PR_SET_PDEATHSIG as usize, signal as usize, 0, 0, 0],
        )
    };
}
