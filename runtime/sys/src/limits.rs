//! Limits that would end the runtime instead of failing its calls.

/// Makes a write past the file size limit fail, as a full disk does, where it would end the process by SIGXFSZ.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
