//! Why a file operation failed, in the words of the contract.
//!
//! The kernel's errors are mapped to reasons here and nowhere else.

use std::{io, path::Path};

use rustix::io::Errno;
use sandgate_proto::{runtime::v1::FileError, v1::ErrorReason};

use crate::path;

/// Messages are for a person; a longer one (a pattern that does not parse, say) is cut.
const MAX_MESSAGE: usize = 1024;

/// A failed operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// From the contract's list.
    pub reason: ErrorReason,
    /// For a person.
    pub message: String,
    /// The path that failed, absolute in the call's view.
    pub path: Option<Vec<u8>>,
    /// How often the text occurs, with `EditAmbiguous`.
    pub count: u64,
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

// === impl Error ===

impl Error {
    /// An error without a path.
    pub fn new(reason: ErrorReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            path: None,
            count: 0,
        }
    }

    /// A field of the request is missing, malformed or out of range.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorReason::InvalidArgument, message)
    }

    /// What the kernel said of `path`.
    pub fn io(error: impl Into<io::Error>, path: impl AsRef<Path>) -> Self {
        let error = error.into();
        Self::new(reason(&error), words(&error)).at(path)
    }

    /// The same error, about `path`.
    #[must_use]
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path::bytes(path.as_ref()).to_vec());
        self
    }

    /// The same error, about `path` if it was about none.
    #[must_use]
    pub fn or_at(self, path: impl AsRef<Path>) -> Self {
        if self.path.is_some() { self } else { self.at(path) }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::new(reason(&error), words(&error))
    }
}

impl<E: Into<io::Error>, P: AsRef<Path>> From<(E, P)> for Error {
    fn from((error, path): (E, P)) -> Self {
        Self::io(error, path)
    }
}

impl From<Error> for FileError {
    fn from(error: Error) -> Self {
        // Deep in a tree a path can be longer than any that a call may name.
        let path = error.path.as_deref().unwrap_or_default();
        let (path, path_raw) = path::twins(path.get(..path::MAX_PATH).unwrap_or(path));
        let mut message = error.message;
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Self {
            reason: error.reason.into(),
            message,
            path,
            path_raw,
            count: error.count,
        }
    }
}

fn reason(error: &io::Error) -> ErrorReason {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => ErrorReason::FileNotFound,
        Some(Errno::ACCESS | Errno::PERM) => ErrorReason::FilePermissionDenied,
        Some(Errno::EXIST) => ErrorReason::FileAlreadyExists,
        Some(Errno::ISDIR) => ErrorReason::FileIsDirectory,
        Some(Errno::NOTDIR) => ErrorReason::FileNotDirectory,
        Some(Errno::NOTEMPTY) => ErrorReason::FileDirectoryNotEmpty,
        // openat2 says EXDEV for `..` and symlinks that lead out, ELOOP for magic links. A ring of symlinks is ELOOP too.
        Some(Errno::LOOP | Errno::XDEV) => ErrorReason::PathOutsideRoot,
        Some(Errno::NAMETOOLONG | Errno::INVAL) => ErrorReason::PathInvalid,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => ErrorReason::DiskFull,
        _ => ErrorReason::FileIo,
    }
}

fn words(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::LOOP | Errno::XDEV) => "a link leads out of the root, or in a circle".to_owned(),
        Some(Errno::INVAL) => "the path can't be used for this".to_owned(),
        _ => {
            // std appends the number of the error, which is of no use to the reader.
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or_default().to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_has_its_reason() {
        for (errno, reason) in [
            (Errno::NOENT, ErrorReason::FileNotFound),
            (Errno::ACCESS, ErrorReason::FilePermissionDenied),
            (Errno::PERM, ErrorReason::FilePermissionDenied),
            (Errno::EXIST, ErrorReason::FileAlreadyExists),
            (Errno::ISDIR, ErrorReason::FileIsDirectory),
            (Errno::NOTDIR, ErrorReason::FileNotDirectory),
            (Errno::NOTEMPTY, ErrorReason::FileDirectoryNotEmpty),
            (Errno::LOOP, ErrorReason::PathOutsideRoot),
            (Errno::XDEV, ErrorReason::PathOutsideRoot),
            (Errno::NAMETOOLONG, ErrorReason::PathInvalid),
            (Errno::INVAL, ErrorReason::PathInvalid),
            (Errno::NOSPC, ErrorReason::DiskFull),
            (Errno::DQUOT, ErrorReason::DiskFull),
            (Errno::FBIG, ErrorReason::DiskFull),
            (Errno::IO, ErrorReason::FileIo),
            (Errno::ROFS, ErrorReason::FileIo),
        ] {
            assert_eq!(Error::from(errno).reason, reason, "{errno:?}");
            assert_eq!(Error::io(errno, "/x").path.as_deref(), Some(b"/x".as_slice()));
        }
    }

    #[test]
    fn io_errors_keep_their_words() {
        let error = Error::from(Errno::ROFS);
        assert_eq!(error.message, "Read-only file system");
        let error = Error::from(io::Error::other("odd"));
        assert_eq!((error.reason, error.message.as_str()), (ErrorReason::FileIo, "odd"));
    }

    #[test]
    fn becomes_the_contracts_error() {
        use std::os::unix::ffi::OsStrExt as _;

        let path = Path::new(std::ffi::OsStr::from_bytes(b"/\xff"));
        let sent = FileError::from(Error::io(Errno::NOENT, path));
        assert_eq!(sent.reason(), ErrorReason::FileNotFound);
        assert_eq!(sent.path, "");
        assert_eq!(sent.path_raw.as_ref(), b"/\xff");

        let sent = FileError::from(Error::invalid("é".repeat(2000)).at("/a"));
        assert_eq!((sent.path.as_str(), sent.message.len()), ("/a", MAX_MESSAGE));
        assert_eq!(Error::invalid("x").at("/a").or_at("/b").path.unwrap(), b"/a");
    }
}
