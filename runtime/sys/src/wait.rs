//! Waiting for children, with what they used.
//!
//! rustix and std leave out the fifth argument of `waitid(2)`: the resource usage of exactly the child that ended.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
    time::Duration,
};

use rustix::process::Pid;

use crate::raw::syscall;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A process that ended, and what it and the children it waited for had used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// How.
    pub status: ExitStatus,
    /// Processor time in user mode.
    pub user_time: Duration,
    /// Processor time in the kernel.
    pub system_time: Duration,
    /// Most memory at one time, in bytes.
    pub max_rss: u64,
}

/// A child that ended, as `waitid` tells of it.
pub(crate) struct Ended {
    pub(crate) pid: i32,
    pub(crate) exit: Exit,
}

/// Takes the status of the child behind `pidfd`, if it has ended.
///
/// # Errors
/// ECHILD when it is no child of ours or was waited for already.
pub fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<Exit>> {
    let ended = wait(libc::P_PIDFD, pidfd.as_raw_fd() as usize, libc::WEXITED | libc::WNOHANG);
    Ok(ended.map_err(io::Error::from_raw_os_error)?.map(|ended| ended.exit))
}

/// Whether the child behind `pidfd` can be waited for. One that is traced can't, when it has ended, before its tracer lets go.
#[cfg(feature = "tokio")]
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    matches!(wait(libc::P_PIDFD, pidfd.as_raw_fd() as usize, options), Ok(Some(_)))
}

/// The next child that has ended and was not waited for, left as it is.
#[must_use]
pub fn peek() -> Option<Pid> {
    let ended = wait(libc::P_ALL, 0, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT);
    ended.ok().flatten().and_then(|ended| Pid::from_raw(ended.pid))
}

/// `waitid(2)` without libc, so that it may also run in a child that shares our memory. The error is an errno.
pub(crate) fn wait(which: libc::idtype_t, id: usize, options: i32) -> Result<Option<Ended>, i32> {
    // SAFETY: both are plain data, and all zero is a valid value of each.
    let (mut info, mut usage): (libc::siginfo_t, libc::rusage) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let info_at = ptr::from_mut(&mut info) as usize;
    let usage_at = ptr::from_mut(&mut usage) as usize;
    // SAFETY: both pointers are to locals of the right type.
    let result = unsafe {
        syscall(
            libc::SYS_waitid,
            [which as usize, id, info_at, options as usize, usage_at],
        )
    };
    if result < 0 {
        return Err(i32::try_from(-result).unwrap_or(libc::EINVAL));
    }
    // SAFETY: waitid filled these in, or left them zero.
    let (pid, code, status) = unsafe { (info.si_pid(), info.si_code, info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let status = if code == libc::CLD_EXITED {
        ExitStatus::Code(status)
    } else {
        ExitStatus::Signal(status)
    };
    let max_rss = u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024);
    let exit = Exit {
        status,
        user_time: span(usage.ru_utime),
        system_time: span(usage.ru_stime),
        max_rss,
    };
    Ok(Some(Ended { pid, exit }))
}

fn span(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))
}
