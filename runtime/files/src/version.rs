//! Which version a file is: guards against overwriting what the caller has not seen.

use std::{
    fs::File,
    io::Read as _,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use bytes::Bytes;
use rustix::fs::{self, Stat};
use sandgate_proto::{
    runtime::v1::{FileVersion, file_version::Version},
    v1::ErrorReason,
};
use sha2::{Digest as _, Sha256};

use crate::{
    error::{Error, Result},
    info,
};

const CHUNK: usize = 64 << 10;
const HASH_LENGTH: usize = 32;

/// SHA-256 of a whole file from its start, and how many bytes that were.
///
/// # Errors
/// What reading came to.
pub fn hash(file: &OwnedFd) -> std::io::Result<(Bytes, u64)> {
    let mut file = File::from(file.try_clone()?);
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((Bytes::copy_from_slice(&hasher.finalize()), total)),
            Ok(length) => {
                hasher.update(buffer.get(..length).unwrap_or_default());
                total += length as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Refuses a file that is not the expected version. `path` is how it is shown. The file's offset is moved.
///
/// # Errors
/// `FileVersionMismatch`; `InvalidArgument` for a version that is none.
pub fn check(expected: &FileVersion, file: &OwnedFd, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let failed = |error: std::io::Error| Error::io(error, path);
    let same = match valid(expected)? {
        Version::Sha256(wanted) => hash(file).map_err(failed)?.0 == *wanted,
        Version::ModifiedAndSize(_) => {
            let stat = fs::fstat(file.as_fd()).map_err(|errno| failed(errno.into()))?;
            same_stat(expected, &stat)
        }
    };
    if same { Ok(()) } else { Err(mismatch(path)) }
}

/// The same for a file that was read already.
///
/// # Errors
/// As [`check`].
pub fn check_content(expected: &FileVersion, content: &[u8], stat: &Stat, path: impl AsRef<Path>) -> Result<()> {
    let same = match valid(expected)? {
        Version::Sha256(wanted) => Sha256::digest(content).as_slice() == wanted.as_ref(),
        Version::ModifiedAndSize(_) => same_stat(expected, stat),
    };
    if same { Ok(()) } else { Err(mismatch(path)) }
}

/// The error for a file that is another version, or is not there at all.
pub fn mismatch(path: impl AsRef<Path>) -> Error {
    Error::new(ErrorReason::FileVersionMismatch, "the file is not the expected version").at(path)
}

fn same_stat(expected: &FileVersion, stat: &Stat) -> bool {
    let Some(Version::ModifiedAndSize(wanted)) = &expected.version else {
        return false;
    };
    wanted.modified == Some(info::modified(stat)) && u64::try_from(stat.st_size) == Ok(wanted.size)
}

fn valid(expected: &FileVersion) -> Result<&Version> {
    match &expected.version {
        None => Err(Error::invalid("an expected version says nothing")),
        Some(Version::Sha256(hash)) if hash.len() != HASH_LENGTH => Err(Error::invalid("a SHA-256 has 32 bytes")),
        Some(Version::ModifiedAndSize(wanted)) if wanted.modified.is_none() => {
            Err(Error::invalid("an expected version lacks its time of change"))
        }
        Some(version) => Ok(version),
    }
}

#[cfg(test)]
mod tests {
    use sandgate_proto::runtime::v1::ModifiedAndSize;

    use super::*;

    fn version(version: Version) -> FileVersion {
        FileVersion { version: Some(version) }
    }

    #[test]
    fn versions_are_told_apart() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("f");
        std::fs::write(&path, "abc").unwrap();
        let file = OwnedFd::from(File::open(&path).unwrap());
        let stat = fs::fstat(&file).unwrap();
        let hash = Bytes::copy_from_slice(&Sha256::digest("abc"));
        let other = Bytes::copy_from_slice(&Sha256::digest("abd"));
        let facts = |size| {
            version(Version::ModifiedAndSize(ModifiedAndSize {
                modified: Some(info::modified(&stat)),
                size,
            }))
        };
        for (expected, same) in [
            (version(Version::Sha256(hash)), true),
            (version(Version::Sha256(other)), false),
            (facts(3), true),
            (facts(4), false),
        ] {
            let reason = |result: Result<()>| result.err().map(|error| error.reason);
            let wanted = (!same).then_some(ErrorReason::FileVersionMismatch);
            assert_eq!(reason(check(&expected, &file, "/f")), wanted, "{expected:?}");
            assert_eq!(
                reason(check_content(&expected, b"abc", &stat, "/f")),
                wanted,
                "{expected:?}"
            );
        }
    }

    #[test]
    fn versions_that_are_none_are_refused() {
        let file = OwnedFd::from(File::open("/dev/null").unwrap());
        for expected in [
            FileVersion::default(),
            version(Version::Sha256(Bytes::from_static(b"short"))),
            version(Version::ModifiedAndSize(ModifiedAndSize::default())),
        ] {
            assert_eq!(
                check(&expected, &file, "/f").unwrap_err().reason,
                ErrorReason::InvalidArgument
            );
        }
    }
}
