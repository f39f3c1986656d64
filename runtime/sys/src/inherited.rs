//! Descriptors that whoever started us left open for us.

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes over the descriptor of that number. Only once in the life of the process: a second owner would close it under
/// the first.
///
/// # Errors
/// When it is one of the standard three, not open, or was taken before.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    if number <= libc::STDERR_FILENO || TAKEN.swap(true, Ordering::AcqRel) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: F_SETFD only changes a flag; on a number that is not open it fails.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and ours: it was left open for us, and nobody has taken it before.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes all descriptors that whoever started us left open, but the standard three. First thing in a program: what it has
/// opened itself would go too.
pub fn inherit_nothing() {
    // SAFETY: closes numbers that nobody in this process has an owner for yet, as the caller promises.
    unsafe { libc::syscall(libc::SYS_close_range, libc::STDERR_FILENO + 1, u32::MAX, 0) };
}
