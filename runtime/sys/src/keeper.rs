//! A reaper of its own for each program, where there are no cgroups.
//!
//! Children that hide (double forks, daemons) are given to the nearest ancestor that asked for orphans. If the runtime
//! were that ancestor for all programs at once, it could not tell whose orphan it got. So each program gets a *keeper*
//! as its parent: a process that shares the runtime's memory (nothing is copied, nothing executed, no binary needed),
//! does nothing but wait, and ends when the last process of the tree has. When the runtime dies, it kills the tree.
//!
//! A keeper shares the thread-local storage of the thread that made it, so its code makes system calls and touches
//! nothing else. Profilers that emulate `clone` (valgrind) can't run it; they can run the cgroup path, which has none.

use std::{
    io, mem,
    mem::ManuallyDrop,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, kill_process},
    time::Timespec,
};

use crate::{
    child::Plan,
    raw::syscall,
    spawn::{BlockedSignals, Command, SpawnError, Stage, clone_into},
    stack::Stack,
    wait::{Exit, ExitStatus, wait},
};

/// The parent of one program and of everything it leaves behind.
#[derive(Debug)]
pub struct Keeper {
    /// The keeper's own process id. Every process of the tree descends from it.
    pub pid: Pid,
    /// The program's process id.
    pub program: Pid,
    /// Readable once the tree is empty and the keeper has ended.
    pub pidfd: OwnedFd,
    reports: OwnedFd,
    // The keeper runs on this memory: it must not be freed before the keeper is gone.
    memory: ManuallyDrop<Box<Memory>>,
}

struct Memory {
    plan: Plan,
    stack: Stack,
    leader_stack: *mut u8,
    report: i32,
    parent: i32,
}

/// What a keeper tells, in one write of a pipe.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Report {
    kind: u32,
    number: i32,
    user_micros: u64,
    system_micros: u64,
    max_rss: u64,
    /// The program left nothing behind.
    alone: u64,
}

/// How long a keeper may be silent at its start before it is looked after.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

const STARTED: u32 = 1;
const NOT_CLONED: u32 = 2;
const FAILED: u32 = 3;
const EXITED: u32 = 4;
const SIGNALLED: u32 = 5;

// === impl Command ===

impl Command {
    /// Starts the program under a keeper.
    ///
    /// # Errors
    /// With the stage at which the child gave up; nothing is left of it then.
    pub fn spawn_kept(&self) -> Result<Keeper, SpawnError> {
        let (reports, report) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|error| SpawnError::clone(error.into()))?;
        let mut stack = Stack::new().map_err(SpawnError::clone)?;
        let memory = Memory {
            plan: Plan::new(self),
            leader_stack: stack.middle(),
            stack,
            report: report.as_raw_fd(),
            parent: rustix::process::getpid().as_raw_nonzero().get(),
        };
        let mut memory = ManuallyDrop::new(Box::new(memory));
        let blocked = BlockedSignals::new();
        let mut pidfd: i32 = -1;
        let flags = libc::CLONE_VM | libc::CLONE_PIDFD | libc::SIGCHLD;
        let top = memory.stack.top().cast();
        let argument = ptr::from_mut::<Memory>(&mut memory).cast();
        // SAFETY: `memory` holds the stack and is not freed before the keeper has ended (`release`).
        let pid = unsafe { libc::clone(keep, top, flags, argument, &raw mut pidfd) };
        let error = io::Error::last_os_error();
        drop(blocked);
        let Some(pid) = Pid::from_raw(pid).filter(|_| pidfd >= 0) else {
            drop(ManuallyDrop::into_inner(memory));
            return Err(SpawnError::clone(error));
        };
        // SAFETY: the kernel has just made this descriptor for us.
        let pidfd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(pidfd) };
        drop(report);
        let mut keeper = Keeper {
            pid,
            program: pid,
            pidfd,
            reports,
            memory,
        };
        match keeper.started() {
            Ok(program) => {
                keeper.program = program;
                Ok(keeper)
            }
            Err(error) => {
                keeper.wait_and_release();
                Err(error)
            }
        }
    }
}

// === impl Keeper ===

impl Keeper {
    /// Where the program's exit is told: readable when `exit` has something to say, at its end when the tree is empty.
    pub fn reports(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }

    /// The program's exit, if it has been told, and whether it left nothing behind.
    ///
    /// # Errors
    /// WouldBlock while the program runs; UnexpectedEof when the keeper ended without a word (somebody killed it).
    pub fn exit(&self) -> io::Result<(Exit, bool)> {
        let report = self.read()?;
        let status = if report.kind == EXITED {
            ExitStatus::Code
        } else {
            ExitStatus::Signal
        };
        let exit = Exit {
            status: status(report.number),
            user_time: Duration::from_micros(report.user_micros),
            system_time: Duration::from_micros(report.system_micros),
            max_rss: report.max_rss,
        };
        Ok((exit, report.alone != 0))
    }

    /// Waits for the keeper's own end, which is near when `pidfd` is readable, and frees what it ran on.
    pub fn wait_and_release(mut self) {
        while let Err(libc::EINTR) = wait(libc::P_PIDFD, self.pidfd.as_raw_fd() as usize, libc::WEXITED) {}
        // SAFETY: the keeper has ended, and `self` is gone after this.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }

    fn started(&self) -> Result<Pid, SpawnError> {
        // A command of our own user may stop its keeper before it could tell us.
        while !matches!(
            poll(&mut [PollFd::new(&self.reports, PollFlags::IN)], Some(&PATIENCE)),
            Ok(1..)
        ) {
            let _ = kill_process(self.pid, Signal::CONT);
        }
        let report = self.read().map_err(|source| SpawnError {
            stage: Stage::Clone,
            source,
        })?;
        let os = io::Error::from_raw_os_error;
        match (report.kind, Pid::from_raw(report.number)) {
            (STARTED, Some(program)) => Ok(program),
            (FAILED, _) => {
                let (stage, errno) = self.memory.plan.failure().unwrap_or((Stage::Exec, libc::ENOENT));
                Err(SpawnError {
                    stage,
                    source: os(errno),
                })
            }
            _ => Err(SpawnError {
                stage: Stage::Clone,
                source: os(report.number),
            }),
        }
    }

    fn read(&self) -> io::Result<Report> {
        let mut bytes = [0; mem::size_of::<Report>()];
        let length = loop {
            match rustix::io::read(&self.reports, &mut bytes) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        if length < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: a report is plain data, written whole by our own keeper.
        Ok(unsafe { mem::transmute::<[u8; mem::size_of::<Report>()], Report>(bytes) })
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

// SAFETY: the pointer is into the stack that the value owns.
unsafe impl Send for Memory {}
// SAFETY: only the keeper's process uses what the pointer leads to.
unsafe impl Sync for Memory {}

// === the keeper's own process ===

/// The keeper's life. It runs in a process of its own, on the runtime's memory.
extern "C" fn keep(memory: *mut libc::c_void) -> i32 {
    // SAFETY: `spawn_kept` passed its `Memory`, which lives until we have ended.
    let memory = unsafe { &*memory.cast::<Memory>() };
    // SAFETY: all of these are plain system calls on numbers and on a string constant.
    unsafe {
        let name = c"sandgate-keeper".as_ptr() as usize;
        syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name, 0, 0, 0]);
        syscall(libc::SYS_prctl, [libc::PR_SET_CHILD_SUBREAPER as usize, 1, 0, 0, 0]);
        syscall(
            libc::SYS_prctl,
            [libc::PR_SET_PDEATHSIG as usize, libc::SIGTERM as usize, 0, 0, 0],
        );
        // A group of its own, so that nothing meant for the runtime's group reaches it.
        syscall(libc::SYS_setpgid, [0; 5]);
    }
    // SAFETY: signals are blocked (inherited), and our caller's memory holds plan and stack.
    let cloned = unsafe { clone_into(&memory.plan, memory.leader_stack, libc::CLONE_VFORK) };
    let leader = match cloned {
        Ok((pid, _pidfd)) => pid.as_raw_nonzero().get(),
        Err(error) => {
            tell(
                memory.report,
                Report {
                    kind: NOT_CLONED,
                    number: error.raw_os_error().unwrap_or(0),
                    ..Report::default()
                },
            );
            return 0;
        }
    };
    if memory.plan.failure().is_some() {
        let _ = wait(libc::P_ALL, 0, libc::WEXITED);
        tell(
            memory.report,
            Report {
                kind: FAILED,
                ..Report::default()
            },
        );
        return 0;
    }
    tell(
        memory.report,
        Report {
            kind: STARTED,
            number: leader,
            ..Report::default()
        },
    );
    // Let go of every descriptor of the runtime, or pipes would never come to their end.
    // SAFETY: plain system calls on numbers.
    unsafe {
        syscall(libc::SYS_dup3, [memory.report as usize, 0, 0, 0, 0]);
        syscall(libc::SYS_close_range, [1, u32::MAX as usize, 0, 0, 0]);
    }
    keep_tree(leader, memory.parent);
    0
}

/// Waits until the tree is empty.
fn keep_tree(leader: i32, parent: i32) {
    let wanted: u64 = (1 << (libc::SIGCHLD - 1)) | (1 << (libc::SIGTERM - 1));
    loop {
        match wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG) {
            Ok(Some(ended)) if ended.pid == leader => tell_exit(ended.exit),
            Ok(Some(_)) | Err(libc::EINTR) => {}
            Err(_) => return,
            Ok(None) => {
                // SAFETY: a plain system call.
                // Asked before each wait: if the runtime died before we asked for a signal, none will come.
                if unsafe { syscall(libc::SYS_getppid, [0; 5]) } != parent as isize {
                    return kill_tree();
                }
                // SAFETY: a plain system call on a local.
                unsafe { syscall(libc::SYS_rt_sigtimedwait, [&raw const wanted as usize, 0, 0, 8, 0]) };
            }
        }
    }
}

/// Kills our children, who leave theirs to us, until there are none.
fn kill_tree() {
    let mut text = [0u8; 4096];
    loop {
        // SAFETY: the path is a C string and the buffer a local.
        let length = unsafe {
            let at = libc::AT_FDCWD as isize as usize;
            let path = c"/proc/thread-self/children".as_ptr() as usize;
            let fd = syscall(libc::SYS_openat, [at, path, libc::O_RDONLY as usize, 0, 0]);
            if fd < 0 {
                return;
            }
            let length = syscall(
                libc::SYS_read,
                [fd as usize, text.as_mut_ptr() as usize, text.len(), 0, 0],
            );
            syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0]);
            length
        };
        let mut pid = 0usize;
        for &byte in text.iter().take(usize::try_from(length).unwrap_or(0)) {
            if byte.is_ascii_digit() {
                pid = pid.wrapping_mul(10).wrapping_add(usize::from(byte - b'0'));
            } else if pid != 0 {
                // SAFETY: a plain system call on numbers; the pid is our own unreaped child's.
                unsafe { syscall(libc::SYS_kill, [pid, libc::SIGKILL as usize, 0, 0, 0]) };
                pid = 0;
            }
        }
        if matches!(wait(libc::P_ALL, 0, libc::WEXITED), Err(errno) if errno != libc::EINTR) {
            return;
        }
    }
}

fn tell_exit(exit: Exit) {
    let (kind, number) = match exit.status {
        ExitStatus::Code(code) => (EXITED, code),
        ExitStatus::Signal(signal) => (SIGNALLED, signal),
    };
    let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(0);
    let alone = wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT).is_err();
    let report = Report {
        kind,
        number,
        user_micros: micros(exit.user_time),
        system_micros: micros(exit.system_time),
        max_rss: exit.max_rss,
        alone: u64::from(alone),
    };
    tell(0, report);
}

fn tell(fd: i32, report: Report) {
    let size = mem::size_of::<Report>();
    // SAFETY: the report is a local. A failed write means that the runtime is gone, which we notice by itself.
    unsafe { syscall(libc::SYS_write, [fd as usize, &raw const report as usize, size, 0, 0]) };
}
