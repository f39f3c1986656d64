//! One regular file on its way in, however it travels.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

use prost_types::Timestamp;
use rustix::fs::{self, OFlags, Stat, Timespec};
use sandgate_proto::{runtime::v1::UploadEntry, v1::ErrorReason};
use sha2::{Digest as _, Sha256};

use crate::{
    atomic::{Finish, Owner, Shared, Staged},
    error::{Error, Result},
    info::PERMISSIONS,
    target::Target,
};

use super::CHUNK;

/// A file that is being received. Dropped before its end it leaves nothing behind.
#[derive(Debug)]
pub(super) struct Incoming {
    target: Target,
    staged: Staged,
    finish: Finish,
    size: Option<u64>,
    received: u64,
    /// Only for what can't be read again at the end. Whether a hash is to be checked is known only then.
    hasher: Option<Sha256>,
}

// === impl Incoming ===

impl Incoming {
    /// Begins a file that replaces what is at `target`. `size` is how many bytes must come, if that is known.
    pub(super) fn begin(
        target: Target,
        size: Option<u64>,
        mode: Option<u32>,
        modified: Option<Timespec>,
        shared: &Shared,
    ) -> io::Result<Self> {
        let mut staged = Staged::begin(&target, &shared.litter)?;
        let readable = fs::fcntl_getfl(staged.file())?.contains(OFlags::RDWR);
        Ok(Self {
            target,
            staged,
            finish: Finish {
                replace: true,
                mode,
                owner: Owner::Replaced,
                modified,
            },
            size,
            received: 0,
            hasher: (!readable).then(Sha256::new),
        })
    }

    /// Bytes received so far.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Adds bytes. After an error it is as before, so that the same bytes can come again.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let received = self.received.saturating_add(bytes.len() as u64);
        if self.size.is_some_and(|size| received > size) {
            return Err(wrong("more bytes came than the entry's size"));
        }
        if let Err(error) = self.staged.file().write_all(bytes) {
            // What does not seek can't take them again either.
            let _back = self.staged.file().seek(SeekFrom::Start(self.received));
            let _cut = self.staged.file().set_len(self.received);
            return Err(error.into());
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.received = received;
        Ok(())
    }

    /// Puts the file in its place, if it is what the sender says: `sha256` is empty or its hash.
    pub(super) fn end(mut self, sha256: &[u8], shared: &Shared) -> Result<Stat> {
        if self.size.is_some_and(|size| self.received < size) {
            return Err(wrong("fewer bytes came than the entry's size"));
        }
        if !sha256.is_empty() && self.hash()? != sha256 {
            return Err(wrong("the bytes that came do not have the SHA-256 that was given"));
        }
        let _held = shared.locks.hold(&[self.target.key()?]);
        Ok(self.staged.commit(&self.target, &self.finish)?)
    }

    fn hash(&mut self) -> io::Result<Vec<u8>> {
        if let Some(hasher) = self.hasher.take() {
            return Ok(hasher.finalize().to_vec());
        }
        let file = self.staged.file();
        file.rewind()?;
        let hash = hash(file, self.received)?;
        file.seek(SeekFrom::Start(self.received))?;
        Ok(hash)
    }
}

/// What an entry says of itself, checked.
pub(super) struct Facts {
    pub(super) mode: Option<u32>,
    pub(super) modified: Option<Timespec>,
}

// === impl Facts ===

impl Facts {
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn of(entry: &UploadEntry) -> Result<Self> {
        if entry.mode.is_some_and(|mode| mode > PERMISSIONS) {
            return Err(Error::invalid("mode is more than 07777"));
        }
        let modified = entry.modified.as_ref().map(timespec).transpose()?;
        Ok(Self {
            mode: entry.mode,
            modified,
        })
    }
}

fn timespec(timestamp: &Timestamp) -> Result<Timespec> {
    if !(0..1_000_000_000).contains(&timestamp.nanos) {
        return Err(Error::invalid("nanos of modified are not within a second"));
    }
    Ok(Timespec {
        tv_sec: timestamp.seconds,
        tv_nsec: timestamp.nanos.into(),
    })
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorReason::HashMismatch, message)
}

fn hash(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; CHUNK.min(usize::try_from(length).unwrap_or(CHUNK))];
    let mut rest = file.take(length);
    loop {
        match rest.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().to_vec()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// Sets the time of change of a symlink.
pub(super) fn set_link_modified(target: &Target, modified: Option<Timespec>) -> io::Result<()> {
    let Some(modified) = modified else { return Ok(()) };
    let times = fs::Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        },
        last_modification: modified,
    };
    fs::utimensat(
        target.directory(),
        Path::new(target.name()),
        &times,
        fs::AtFlags::SYMLINK_NOFOLLOW,
    )?;
    Ok(())
}
