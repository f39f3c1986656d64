//! Descriptors that whoever started us left open for us, and those that we leave to others.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

/// The first one behind the standard three.
const FIRST: RawFd = libc::STDERR_FILENO + 1;
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes over the descriptor of that number. Only once in the life of the process: a second owner would close it under
/// the first.
///
/// # Errors
/// When it is one of the standard three, not open, or was taken before.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    if number < FIRST || TAKEN.swap(true, Ordering::AcqRel) {
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
    // SAFETY: closes numbers that nobody in this process has an owner for yet, as the caller promises. What can't be closed
    // stays open, as it would be without this.
    let _ = unsafe { close_range(FIRST, RawFd::MAX, 0) };
}

/// Starts a thread with a table of descriptors of its own: `given` and the standard three are all that is in it. What it starts
/// inherits from that table. It can't wake tokio, which is done through a descriptor. Where the kernel refuses a table, or a
/// filter of system calls does, the thread has the table of all.
///
/// # Errors
/// When no thread can be started.
pub fn with_own_descriptors(name: &str, given: OwnedFd, body: fn(OwnedFd)) -> io::Result<()> {
    let number = given.as_raw_fd();
    let (tell, told) = mpsc::channel();
    let own = move || {
        // SAFETY: `body` can't have taken anything that owns a descriptor, and neither have we.
        let _ = tell.send(unsafe { leave_all_but(number) });
        // SAFETY: it is open. Nobody has it in a table of our own; in that of all, it is left to us.
        body(unsafe { OwnedFd::from_raw_fd(number) });
    };
    thread::Builder::new().name(name.to_owned()).spawn(own)?;
    if told.recv() != Ok(true) {
        // The thread has this very one.
        let _ = given.into_raw_fd();
    }
    Ok(())
}

/// Gives this thread a table of its own with nothing in it but the standard three and this one. Answers whether it has one.
///
/// # Safety
/// The thread owns no other descriptor.
unsafe fn leave_all_but(number: RawFd) -> bool {
    // Not `unshare`: filters that are there against namespaces refuse it, such as the one that Docker has by default.
    // SAFETY: from here on this thread opens and closes in a copy; whoever owns what is closed there has it in the other one.
    let has_own = unsafe { close_range(number + 1, RawFd::MAX, libc::CLOSE_RANGE_UNSHARE) }.is_ok();
    if has_own && number > FIRST {
        // SAFETY: as above.
        let _ = unsafe { close_range(FIRST, number - 1, 0) };
    }
    has_own
}

/// Closes the descriptors of these numbers, if there are any.
///
/// # Safety
/// Nobody who goes on with that table may own one of them.
unsafe fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: as the caller promises.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
