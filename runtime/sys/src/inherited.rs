//! Descriptors that whoever started us left open for us, and those that we leave to others.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
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
    unsafe { close_range(libc::STDERR_FILENO + 1, RawFd::MAX) };
}

/// Starts a thread with a table of descriptors of its own: `given` and the standard three are all that is in it. What it starts
/// inherits from that table. It can't wake tokio, which is done through a descriptor, and nothing else that owns one may be
/// given to it.
///
/// # Errors
/// When no thread can be started, or the kernel refuses it a table.
pub fn with_own_descriptors(name: &str, given: OwnedFd, body: impl FnOnce(OwnedFd) + Send + 'static) -> io::Result<()> {
    let number = given.as_raw_fd();
    let (tell, told) = mpsc::channel();
    let own = move || {
        // SAFETY: from here on this thread opens and closes in a copy of the table.
        let unshared = unsafe { libc::unshare(libc::CLONE_FILES) };
        if unshared != 0 {
            let _ = tell.send(Err(io::Error::last_os_error()));
            return;
        }
        // SAFETY: the owners of what is closed here are other threads, whose table has it still.
        unsafe {
            close_range(libc::STDERR_FILENO + 1, number - 1);
            close_range(number + 1, RawFd::MAX);
        }
        // SAFETY: it is open, and nobody has it in this table.
        let given = unsafe { OwnedFd::from_raw_fd(number) };
        let _ = tell.send(Ok(()));
        body(given);
    };
    thread::Builder::new().name(name.to_owned()).spawn(own)?;
    let has_own = told.recv().map_err(io::Error::other)?;
    drop(given);
    has_own
}

/// Closes the descriptors of these numbers, if there are any.
///
/// # Safety
/// Nobody who shares the table may own one of them.
unsafe fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: as the caller promises.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}
