//! Waiting for descriptors without blocking.
//!
//! tokio asks for a promise that a descriptor does not change while it is registered. An `OwnedFd` keeps it.

use std::{io, os::fd::OwnedFd};

use rustix::process::{Signal, WaitOptions, pidfd_send_signal, waitpid};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    begun::Begun,
    spawn::{SpawnError, Spawned},
};

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
    // SAFETY: an OwnedFd is the same open descriptor for as long as it lives, and AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(io::Error::from)
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
            // Nobody would look after it.
            Err(error) => {
                let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
                let _ = waitpid(Some(self.pid), WaitOptions::empty());
                Err(SpawnError::clone(error))
            }
        }
    }
}

async fn at_end(report: OwnedFd) -> io::Result<OwnedFd> {
    let report = readiness(report)?;
    report.readable().await?.retain_ready();
    Ok(report.into_inner())
}
