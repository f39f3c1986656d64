//! Limits of our own processes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::spawn::Limit;

/// Makes a write past the file size limit fail, as a full disk does, where it would end the process by SIGXFSZ.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Raises our own limit of open descriptors as far as it goes: each command takes a few. Answers the limit as it was, for
/// programs that take more descriptors for a reason to take more time (they close them all, or poll by `select`).
#[must_use]
pub fn raise_descriptor_limit() -> Option<Limit> {
    let before = getrlimit(Resource::Nofile);
    let (soft, hard) = (before.current?, before.maximum?);
    let raised = Rlimit {
        current: Some(hard),
        maximum: Some(hard),
    };
    setrlimit(Resource::Nofile, raised).ok()?;
    Limit::named("nofile", soft, hard)
}

/// Makes all threads share this many heaps. glibc makes one for each thread, up to eight a processor, and what is free in one
/// is of no use to the others: a server of a thousand sandboxes had twice the memory. Other libraries do not.
pub fn share_heaps(most: usize) {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, i32::try_from(most).unwrap_or(i32::MAX))
    };
    #[cfg(not(target_env = "gnu"))]
    let _ = most;
}
