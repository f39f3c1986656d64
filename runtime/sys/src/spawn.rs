//! Starting a program without copying the address space.
//!
//! `posix_spawn` can't set a user, limits, a cgroup or a controlling terminal, and std's `pre_exec` forks, which costs
//! 22 ms for a parent of 500 MiB. So this is our own clone of a child that shares our memory until it has become the program
//! or has failed, and so can tell exactly what failed. Whoever may not block begins it and waits for it apart ([`Begun`]).

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
    sync::Arc,
};

use rustix::process::Pid;

use crate::{child::Plan, stack::Stack};

/// A program to start, with everything the child needs.
#[derive(Debug)]
pub struct Command {
    /// Paths to try, in order, as execvp would.
    pub programs: Vec<CString>,
    /// Arguments, the program's name first.
    pub argv: Vec<CString>,
    /// The whole environment, each `NAME=value`.
    pub env: Vec<CString>,
    /// stdin, stdout and stderr.
    pub stdio: Stdio,
    /// stdin is a terminal that becomes the controlling one.
    pub terminal: bool,
    /// Working directory.
    pub cwd: CString,
    /// Become this user.
    pub user: Option<Credentials>,
    /// File mode creation mask.
    pub umask: u32,
    /// Resource limits to set.
    pub limits: Vec<Limit>,
    /// Directory of the cgroup2 group to begin in.
    pub cgroup: Option<Arc<OwnedFd>>,
    /// The `tasks` file, open for writing, of a v1 memory group to enter.
    pub memory_tasks: Option<Arc<OwnedFd>>,
    /// How readily the kernel kills it when memory runs out.
    pub oom_score_adj: Option<i32>,
    /// Stays open in the program as descriptor 3.
    pub descriptor_3: Option<OwnedFd>,
}

/// What a program has as stdin, stdout and stderr.
#[derive(Debug)]
pub enum Stdio {
    /// These.
    Given([OwnedFd; 3]),
    /// What the parked child that becomes the program was given.
    Parked,
    /// The same, but that stderr is stdout too.
    ParkedMerged,
}

/// Who to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// A resource limit.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// `RLIMIT_…`.
    pub resource: u32,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// What a child was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Cloning: no process, or no memory for one.
    Clone = 1,
    /// Making a session, resetting signals.
    Session = 2,
    /// Entering a cgroup.
    Cgroup = 3,
    /// Setting up stdin, stdout and stderr.
    Stdio = 4,
    /// Taking the terminal.
    Terminal = 5,
    /// Setting a resource limit.
    Limit = 6,
    /// Becoming the user.
    User = 7,
    /// Entering the working directory.
    Cwd = 8,
    /// Executing the program.
    Exec = 9,
    /// Waiting to be told the program, of which nothing was done.
    Parked = 10,
}

/// A child that could not become the program.
#[derive(Debug, thiserror::Error)]
#[error("{stage:?}: {source}")]
pub struct SpawnError {
    /// What it was doing.
    pub stage: Stage,
    /// What the kernel said.
    pub source: io::Error,
}

/// A program that runs.
#[derive(Debug)]
pub struct Spawned {
    /// Its process id.
    pub pid: Pid,
    /// A descriptor that is readable once it has ended, and can't come to mean another process.
    pub pidfd: OwnedFd,
}

// === impl Command ===

impl Command {
    pub(crate) fn stdio_numbers(&self) -> [i32; 3] {
        match &self.stdio {
            Stdio::Given(given) => given.each_ref().map(AsRawFd::as_raw_fd),
            Stdio::Parked => [0, 1, 2],
            Stdio::ParkedMerged => [0, 1, 1],
        }
    }

    /// Starts the program as a child of this process, in a session of its own, and waits until it is the program.
    ///
    /// # Errors
    /// With the stage at which the child gave up; nothing is left of it then.
    pub fn spawn(&self) -> Result<Spawned, SpawnError> {
        if let Some(begun) = self.begin()? {
            return begun.wait();
        }
        // An old kernel, or a filter of somebody's: it enters its group by itself.
        let plan = Plan::new(self);
        let mut stack = Stack::new().map_err(SpawnError::clone)?;
        let blocked = BlockedSignals::new();
        // SAFETY: plan and stack outlive the child's use of them, since CLONE_VFORK holds this thread until then.
        let cloned = unsafe { clone_into(&plan, stack.top(), libc::CLONE_VFORK) };
        drop(blocked);
        stack.spare();
        let (pid, pidfd) = cloned.map_err(SpawnError::clone)?;
        plan.outcome(pid)?;
        Ok(Spawned { pid, pidfd })
    }
}

// === impl SpawnError ===

impl SpawnError {
    pub(crate) fn clone(source: io::Error) -> Self {
        Self {
            stage: Stage::Clone,
            source,
        }
    }
}

// === impl Limit ===

impl Limit {
    /// The limit of that name, as in setrlimit(2), in lower case and without `RLIMIT_`.
    #[must_use]
    pub fn named(name: &str, soft: u64, hard: u64) -> Option<Self> {
        // The numbers are the same on every architecture that we build for; libc gives them different types.
        const NAMES: [&str; 10] = [
            "cpu", "fsize", "data", "stack", "core", "rss", "nproc", "nofile", "memlock", "as",
        ];
        let resource = NAMES.iter().position(|known| *known == name)?;
        Some(Self {
            resource: u32::try_from(resource).ok()?,
            soft,
            hard,
        })
    }
}

// === impl Stage ===

impl Stage {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        [
            Self::Clone,
            Self::Session,
            Self::Cgroup,
            Self::Stdio,
            Self::Terminal,
            Self::Limit,
            Self::User,
            Self::Cwd,
            Self::Exec,
            Self::Parked,
        ]
        .into_iter()
        .find(|stage| *stage as u32 == number)
    }
}

/// Blocks every signal in this thread while it lives: a handler must not run in a child that shares our memory.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
}

// === impl BlockedSignals ===

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        // SAFETY: both sets are plain data that these calls fill in.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that pthread_sigmask gave us.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Clones a child that shares our memory and follows the plan.
///
/// # Safety
/// All signals are blocked. `plan` and the stack below `top` stay valid until the child has called exec or ended.
pub(crate) unsafe fn clone_into(plan: &Plan, top: *mut u8, flags: i32) -> io::Result<(Pid, OwnedFd)> {
    extern "C" fn follow(plan: *mut libc::c_void) -> i32 {
        // SAFETY: `clone_into` passed a plan that outlives us, and we are its child.
        unsafe { (*plan.cast::<Plan>()).run() };
        127
    }
    let mut pidfd: i32 = -1;
    let flags = flags | libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
    let plan = ptr::from_ref(plan).cast_mut().cast();
    // SAFETY: the stack is the caller's promise; CLONE_PIDFD stores the descriptor where the fifth argument points.
    let pid = unsafe { libc::clone(follow, top.cast(), flags, plan, &raw mut pidfd) };
    made(pid, pidfd).ok_or_else(io::Error::last_os_error)
}

/// What a clone made: a process id, and the descriptor that the kernel stored for us.
pub(crate) fn made(pid: i32, pidfd: i32) -> Option<(Pid, OwnedFd)> {
    let pid = Pid::from_raw(pid).filter(|_| pid > 0 && pidfd >= 0)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Some((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}
