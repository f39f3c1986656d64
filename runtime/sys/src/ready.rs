//! Waiting for descriptors without blocking.
//!
//! tokio asks for a promise that a descriptor does not change while it is registered. An `OwnedFd` keeps it.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, WaitOptions, kill_process, waitpid},
};
use tokio::{
    io::{
        Interest,
        unix::{AsyncFd, AsyncFdRegisterError},
    },
    time,
};

use crate::{
    begun::{Begun, outcome},
    spawn::{SpawnError, Spawned},
    wait::has_ended,
};

/// A program that was started, and is watched.
#[derive(Debug)]
pub struct Watched {
    /// Ready to be read when it has ended.
    pub pidfd: AsyncFd<OwnedFd>,
    /// It has, and can be waited for.
    pub is_ended: bool,
}

/// A descriptor whose readiness to be read or written can be awaited.
///
/// # Errors
/// When it can't be polled, or there is no tokio runtime's epoll to take it.
pub fn readiness(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(fd, Interest::READABLE | Interest::WRITABLE)
}

/// A descriptor whose exceptional events can be awaited, such as a change of a cgroup's file.
///
/// # Errors
/// As `readiness`.
pub fn priority(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(fd, Interest::PRIORITY)
}

pub(crate) fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    try_register(fd, interest).map_err(io::Error::from)
}

/// As `readiness`, for those who still want the descriptor when it fails.
///
/// # Errors
/// As `readiness`.
pub fn try_readiness(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    try_register(fd, Interest::READABLE | Interest::WRITABLE).map_err(AsyncFdRegisterError::into_parts)
}

fn try_register(fd: OwnedFd, interest: Interest) -> Result<AsyncFd<OwnedFd>, AsyncFdRegisterError<OwnedFd>> {
    // SAFETY: an OwnedFd is the same open descriptor for as long as it lives, and AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }
}

// === impl Begun ===

impl Begun {
    /// As `wait`, without blocking.
    ///
    /// # Errors
    /// As `wait`.
    pub async fn finished(mut self) -> Result<Spawned, SpawnError> {
        match at_end(self.report).await {
            Ok(report) => {
                self.report = report;
                self.wait()
            }
            Err(error) => Err(given_up(self.pid, error)),
        }
    }

    /// The same for those who would rather not be woken when the program begins: where the two share a processor, that is at
    /// the program's cost. It is looked at when it has ended, or after `pause`. Its `oom_score_adj` is left to the caller:
    /// it may have children by then.
    ///
    /// # Errors
    /// As `wait`.
    pub async fn finished_quietly(self, pause: Duration) -> Result<Watched, SpawnError> {
        let Self {
            pid,
            pidfd,
            report,
            memory,
            ..
        } = self;
        let pidfd = readiness(pidfd).map_err(|error| given_up(pid, error))?;
        let ended = async { pidfd.readable().await.map(|mut guard| guard.retain_ready()) };
        let is_ended = matches!(time::timeout(pause, ended).await, Ok(Ok(()))) && has_ended(pidfd.get_ref().as_fd());
        // Another child that is on its way may hold the report a moment longer than ours.
        if !is_closed(&report) {
            at_end(report).await.map_err(|error| given_up(pid, error))?;
        }
        // SAFETY: the report is at its end, so the child does not hold it any more.
        unsafe { outcome(pid, memory) }?;
        Ok(Watched { pidfd, is_ended })
    }
}

/// Ends a child that nobody could look after.
fn given_up(pid: Pid, error: io::Error) -> SpawnError {
    let _ = kill_process(pid, Signal::KILL);
    let _ = waitpid(Some(pid), WaitOptions::empty());
    SpawnError::clone(error)
}

async fn at_end(report: OwnedFd) -> io::Result<OwnedFd> {
    let report = readiness(report)?;
    report.readable().await?.retain_ready();
    Ok(report.into_inner())
}

/// Whether nobody holds the other end of a pipe.
fn is_closed(pipe: &OwnedFd) -> bool {
    let mut pipe = [PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut pipe, Some(&now)).is_ok() && pipe[0].revents().contains(PollFlags::HUP)
}
