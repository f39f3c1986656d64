//! Sending any signal.
//!
//! rustix leaves out the real-time signals, some of which a libc keeps to itself. To another process any may be sent.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
};

/// Sends the signal of that number to the process behind `pidfd`.
///
/// # Errors
/// ESRCH when it has ended, EINVAL when there is no such signal, EPERM when it is not ours to signal.
pub fn send_signal(pidfd: impl AsFd, number: i32) -> io::Result<()> {
    let fd = pidfd.as_fd().as_raw_fd();
    let nothing = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: numbers and a null pointer, which stands for what `kill` would tell.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, number, nothing, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
