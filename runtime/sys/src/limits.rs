//! Limits of the runtime itself.

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
