//! What happens between clone and exec.
//!
//! The child runs in its parent's memory (`CLONE_VM`), so that nothing is copied however large the runtime is. It only
//! makes system calls, on data that was laid out before the clone: no allocation, no libc, no panic.

use std::{
    convert::Infallible,
    ffi::{CString, c_char},
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicI32, AtomicU32, Ordering},
    },
};

use rustix::process::Pid;

use crate::{
    clone3::clone3_into,
    parked::Parking,
    raw::syscall,
    spawn::{Command, SpawnError, Stage, made},
    stack::Stack,
};

/// Everything the child needs, laid out so that it only has to point at it.
pub(crate) struct Plan {
    programs: Vec<CString>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    stdio: [i32; 3],
    terminal: bool,
    cwd: CString,
    user: Option<(u32, u32, Vec<u32>)>,
    umask: u32,
    limits: Vec<(u32, [u64; 2])>,
    /// The group's directory, until the child has begun in it.
    cgroup: Option<i32>,
    memory_tasks: Option<i32>,
    /// Signals that may have another disposition than the default.
    signals: &'static [usize],
    oom_score_adj: Vec<u8>,
    descriptor_3: Option<i32>,
    /// Closed by exec, or by the end.
    report: Option<i32>,
    /// Where the child waits for the rest of its plan.
    pub(crate) parking: Option<Parking>,
    failed_stage: AtomicU32,
    failed_errno: AtomicI32,
    // Owns what `argv` and `envp` point at.
    _strings: Vec<CString>,
}

// SAFETY: the pointers in `argv` and `envp` point into `_strings`, which is never changed while the plan lives.
unsafe impl Send for Plan {}
// SAFETY: as above; the rest is plain data and atomics.
unsafe impl Sync for Plan {}

#[repr(C)]
struct KernelSigaction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// All of them.
const SIGNALS: [usize; 64] = {
    let mut all = [0; 64];
    let mut at = 0;
    while at < all.len() {
        all[at] = at + 1;
        at += 1;
    }
    all
};
const SIGSET_BYTES: usize = 8;

/// What children have of us until they are the program; -1: nothing.
static HELD: AtomicI32 = AtomicI32::new(-1);

/// Lets children have `file` until they are the program, so that a lock on it says that none is on its way. All else of
/// ours is closed in them before a path of the command's is looked at: a directory of ours that lies outside of the sandbox
/// could be walked out of, as `/proc/self/fd/9/..`.
pub fn hold_until_exec(file: &std::fs::File) {
    HELD.store(file.as_raw_fd(), Ordering::Release);
}

fn check(stage: Stage, result: isize) -> Result<(), (Stage, isize)> {
    if result < 0 { Err((stage, result)) } else { Ok(()) }
}

// === impl Plan ===

impl Plan {
    pub(crate) fn new(command: &Command) -> Self {
        let strings: Vec<CString> = command.argv.iter().chain(&command.env).cloned().collect();
        let pointers = |range: &[CString]| {
            range
                .iter()
                .map(|s| s.as_ptr())
                .chain([ptr::null()])
                .collect::<Vec<*const c_char>>()
        };
        let (args, env) = strings.split_at(command.argv.len());
        let (argv, envp) = (pointers(args), pointers(env));
        Self {
            programs: command.programs.clone(),
            argv,
            envp,
            stdio: command.stdio_numbers(),
            terminal: command.terminal,
            cwd: command.cwd.clone(),
            user: command.user.as_ref().map(|u| (u.uid, u.gid, u.groups.clone())),
            umask: command.umask,
            limits: command.limits.iter().map(|l| (l.resource, [l.soft, l.hard])).collect(),
            cgroup: command.cgroup.as_ref().map(|group| group.as_raw_fd()),
            memory_tasks: command.memory_tasks.as_ref().map(|tasks| tasks.as_raw_fd()),
            signals: &SIGNALS,
            oom_score_adj: command
                .oom_score_adj
                .map(|n| n.to_string().into_bytes())
                .unwrap_or_default(),
            descriptor_3: command.descriptor_3.as_ref().map(|fd| fd.as_raw_fd()),
            report: None,
            parking: None,
            failed_stage: AtomicU32::new(0),
            failed_errno: AtomicI32::new(0),
            _strings: strings,
        }
    }

    /// Makes the child in its cgroup, without waiting for it: it holds `report` open until it is done with us. `None`: there
    /// is no group to begin in, or the kernel can't.
    ///
    /// # Safety
    /// All signals are blocked. The plan and the stack stay valid until the child has called exec or ended.
    pub(crate) unsafe fn begin_in_cgroup(
        &mut self,
        stack: &mut Stack,
        report: BorrowedFd<'_>,
    ) -> Option<io::Result<(Pid, OwnedFd)>> {
        let group = self.cgroup.take()?;
        self.report = Some(report.as_raw_fd());
        // The kernel resets those that are handled.
        self.signals = ignored();
        // It sets its score once it shares no memory with us: the kernel would take that for ours, too.
        self.oom_score_adj.clear();
        let mut pidfd = -1;
        // SAFETY: the caller's promise.
        let cloned = unsafe { clone3_into(self, stack.base(), Stack::SIZE, group, &mut pidfd) };
        match cloned {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => None,
            cloned => Some(cloned.and_then(|pid| made(pid, pidfd).ok_or_else(|| io::ErrorKind::Other.into()))),
        }
    }

    /// The rest of this plan, for a child that waits for it.
    pub(crate) fn rest(&self, command: &Command) -> Self {
        let mut rest = Self::new(command);
        rest.report = self.report;
        rest
    }

    /// What the child could not do, once it has ended without exec.
    pub(crate) fn failure(&self) -> Option<(Stage, i32)> {
        if self.parking.as_ref().is_some_and(|parking| !parking.is_left()) {
            return Some((Stage::Parked, libc::ESRCH));
        }
        let stage = Stage::from_number(self.failed_stage.load(Ordering::Acquire))?;
        Some((stage, self.failed_errno.load(Ordering::Acquire)))
    }

    /// Whether the child, which is done with us, has become the program.
    pub(crate) fn outcome(&self, pid: Pid) -> Result<(), SpawnError> {
        let Some((stage, errno)) = self.failure() else {
            return Ok(());
        };
        // It has ended, or is about to; take its status, so that no zombie is left.
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        Err(SpawnError {
            stage,
            source: io::Error::from_raw_os_error(errno),
        })
    }

    fn fail(&self, stage: Stage, result: isize) {
        let errno = i32::try_from(-result).unwrap_or(libc::EINVAL);
        self.failed_errno.store(errno, Ordering::Release);
        self.failed_stage.store(stage as u32, Ordering::Release);
    }

    /// Becomes the program. Returns only if that failed, with the failure noted.
    ///
    /// # Safety
    /// Only in a child made by `clone` without `CLONE_THREAD`, with all signals blocked.
    pub(crate) unsafe fn run(&self) {
        // SAFETY: we are such a child, by this function's own contract.
        let Err((stage, result)) = unsafe { self.follow() };
        self.fail(stage, result);
    }

    /// # Safety
    /// As `run`.
    unsafe fn follow(&self) -> Result<Infallible, (Stage, isize)> {
        // SAFETY: the caller's promise.
        unsafe {
            self.enter()?;
            let Some(parking) = &self.parking else {
                self.settle()?;
                return self.exec();
            };
            parking.stay_with_parent()?;
            self.take_stdio()?;
            check(Stage::Stdio, self.close_all_but_held(3))?;
            let rest = parking.wait()?;
            rest.settle()?;
            rest.exec()
        }
    }

    /// # Safety
    /// As `run`.
    unsafe fn exec(&self) -> Result<Infallible, (Stage, isize)> {
        let mut worst = -(libc::ENOENT as isize);
        for program in &self.programs {
            // SAFETY: argv and envp end in a null pointer and point at strings that the plan owns.
            let result = unsafe {
                syscall(
                    libc::SYS_execve,
                    [
                        program.as_ptr() as usize,
                        self.argv.as_ptr() as usize,
                        self.envp.as_ptr() as usize,
                        0,
                        0,
                    ],
                )
            };
            // As execvp does: look on when it is not there, and remember that one was there and not allowed.
            match i32::try_from(-result) {
                Ok(libc::ENOENT | libc::ENOTDIR) => {}
                Ok(libc::EACCES) => worst = result,
                _ => {
                    worst = result;
                    break;
                }
            }
        }
        Err((Stage::Exec, worst))
    }

    /// What is the same for every program.
    ///
    /// # Safety
    /// As `run`.
    unsafe fn enter(&self) -> Result<(), (Stage, isize)> {
        // SAFETY: every pointer below is to plan data or to locals that outlive the call.
        unsafe {
            let default = KernelSigaction {
                handler: libc::SIG_DFL,
                flags: 0,
                restorer: 0,
                mask: 0,
            };
            for &signal in self.signals {
                // Fails for KILL and STOP, which have no handler to reset.
                syscall(
                    libc::SYS_rt_sigaction,
                    [signal, &raw const default as usize, 0, SIGSET_BYTES, 0],
                );
            }
            check(Stage::Session, syscall(libc::SYS_setsid, [0; 5]))?;
            if let Some(group) = self.cgroup {
                let path = c"cgroup.procs".as_ptr() as usize;
                let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
                let procs = syscall(libc::SYS_openat, [group as usize, path, flags, 0, 0]);
                check(Stage::Cgroup, procs)?;
                check(Stage::Cgroup, enter(procs as usize))?;
            }
            if let Some(tasks) = self.memory_tasks {
                check(Stage::Cgroup, enter(tasks as usize))?;
            }
            self.set_oom_score();
        }
        Ok(())
    }

    /// # Safety
    /// As `run`.
    unsafe fn take_stdio(&self) -> Result<(), (Stage, isize)> {
        for (target, &source) in self.stdio.iter().enumerate() {
            // What a parked child has already is where it belongs.
            if source as usize != target {
                // SAFETY: a plain system call on numbers.
                let taken = unsafe { syscall(libc::SYS_dup3, [source as usize, target, 0, 0, 0]) };
                check(Stage::Stdio, taken)?;
            }
        }
        Ok(())
    }

    /// What this program wants.
    ///
    /// # Safety
    /// As `run`.
    unsafe fn settle(&self) -> Result<(), (Stage, isize)> {
        // SAFETY: every pointer below is to plan data or to locals that outlive the call.
        unsafe {
            self.take_stdio()?;
            if self.terminal {
                check(
                    Stage::Terminal,
                    syscall(libc::SYS_ioctl, [0, libc::TIOCSCTTY as usize, 0, 0, 0]),
                )?;
            }
            for (resource, limit) in &self.limits {
                let args = [0, *resource as usize, limit.as_ptr() as usize, 0, 0];
                check(Stage::Limit, syscall(libc::SYS_prlimit64, args))?;
            }
            if let Some((uid, gid, groups)) = &self.user {
                let (uid, gid) = (*uid as usize, *gid as usize);
                let set = [groups.len(), groups.as_ptr() as usize, 0, 0, 0];
                check(Stage::User, syscall(libc::SYS_setgroups, set))?;
                check(Stage::User, syscall(libc::SYS_setresgid, [gid, gid, gid, 0, 0]))?;
                check(Stage::User, syscall(libc::SYS_setresuid, [uid, uid, uid, 0, 0]))?;
            }
            let mut first_closed = 3;
            if let Some(source) = self.descriptor_3 {
                // To itself it would be EINVAL, and CLOEXEC would stay: 3 is then the flag's to clear.
                if source == 3 {
                    check(
                        Stage::Stdio,
                        syscall(libc::SYS_fcntl, [3, libc::F_SETFD as usize, 0, 0, 0]),
                    )?;
                } else {
                    check(Stage::Stdio, syscall(libc::SYS_dup3, [source as usize, 3, 0, 0, 0]))?;
                }
                first_closed = 4;
            }
            check(Stage::Stdio, self.close_all_but_held(first_closed))?;
            // After the user: it is the user who must be able to enter.
            check(
                Stage::Cwd,
                syscall(libc::SYS_chdir, [self.cwd.as_ptr() as usize, 0, 0, 0, 0]),
            )?;
            syscall(libc::SYS_umask, [self.umask as usize, 0, 0, 0, 0]);
            let none = 0u64;
            let set = [libc::SIG_SETMASK as usize, &raw const none as usize, 0, SIGSET_BYTES, 0];
            check(Stage::Session, syscall(libc::SYS_rt_sigprocmask, set))
        }
    }

    /// Closes all descriptors from `first` on but those that exec closes: the one that is held, and the report.
    ///
    /// # Safety
    /// Only in a child that has no use for them.
    unsafe fn close_all_but_held(&self, first: usize) -> isize {
        // SAFETY: a plain system call on numbers; what is closed is the caller's promise.
        let close = |from: usize, to: usize| unsafe { syscall(libc::SYS_close_range, [from, to, 0, 0, 0]) };
        let (held, report) = (HELD.load(Ordering::Acquire), self.report.unwrap_or(-1));
        let mut from = first;
        for kept in [held.min(report), held.max(report)] {
            let Some(kept) = usize::try_from(kept).ok().filter(|kept| *kept >= from) else {
                continue;
            };
            if kept > from {
                let closed = close(from, kept - 1);
                if closed < 0 {
                    return closed;
                }
            }
            from = kept + 1;
        }
        close(from, u32::MAX as usize)
    }

    /// Makes the kernel pick this process before the runtime when memory runs out. Best effort: a sandbox without /proc
    /// still runs commands.
    unsafe fn set_oom_score(&self) {
        if self.oom_score_adj.is_empty() {
            return;
        }
        let path = c"/proc/self/oom_score_adj";
        // SAFETY: the path is a C string, the bytes are the plan's.
        unsafe {
            let at = libc::AT_FDCWD as isize as usize;
            let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as usize;
            let fd = syscall(libc::SYS_openat, [at, path.as_ptr() as usize, flags, 0, 0]);
            if fd >= 0 {
                let bytes = &self.oom_score_adj;
                syscall(
                    libc::SYS_write,
                    [fd as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0],
                );
                syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
            }
        }
    }
}

/// Signals that this process ignores: as it was started, or since its own start. It begins to ignore none later.
fn ignored() -> &'static [usize] {
    static IGNORED: OnceLock<Vec<usize>> = OnceLock::new();
    IGNORED.get_or_init(|| SIGNALS.into_iter().filter(|signal| is_ignored(*signal)).collect())
}

fn is_ignored(signal: usize) -> bool {
    let mut now = KernelSigaction {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    // SAFETY: it only asks, and the answer goes to a local of the kernel's own layout.
    let asked = unsafe {
        syscall(
            libc::SYS_rt_sigaction,
            [signal, 0, &raw mut now as usize, SIGSET_BYTES, 0],
        )
    };
    asked == 0 && now.handler == libc::SIG_IGN
}

/// Enters the group of an open `cgroup.procs` or `tasks` file.
///
/// # Safety
/// Only in a child of one thread.
unsafe fn enter(file: usize) -> isize {
    let own = b"0";
    // SAFETY: the byte is a constant.
    unsafe { syscall(libc::SYS_write, [file, own.as_ptr() as usize, 1, 0, 0]) }
}
