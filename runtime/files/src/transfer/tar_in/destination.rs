//! The directory that an archive is unpacked in. Everything is found from its descriptor, beneath it.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::super::{
    directories,
    upload::{path_of, unfit},
};
use crate::{
    beneath::{self, open_beneath},
    error::Result,
    litter::{self, Litter},
    target::Target,
};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Where an archive goes.
pub(super) struct Destination {
    directory: OwnedFd,
    /// The directory that the last file went to: mostly the next one goes there too.
    last: Option<(Vec<u8>, OwnedFd)>,
}

// === impl Destination ===

impl Destination {
    pub(super) fn new(directory: OwnedFd) -> io::Result<Self> {
        beneath::refuse_procfs(&directory)?;
        Ok(Self { directory, last: None })
    }

    /// The place of a file. Missing directories above it are made.
    pub(super) fn target(&mut self, name: &[u8]) -> io::Result<Target> {
        let (parent, name) = split(name);
        Target::new(self.parent(parent)?.try_clone()?, OsStr::from_bytes(name).to_owned())
    }

    /// Opens a directory, making it and those above it where they are missing.
    pub(super) fn make_directory(&mut self, path: &[u8]) -> io::Result<OwnedFd> {
        let (parent, name) = split(path);
        let follow = || {
            open_beneath(
                &self.directory,
                path_of(path),
                OFlags::RDONLY | OFlags::DIRECTORY,
                Mode::empty(),
            )
        };
        // The parent is not remembered: what comes next is in this one.
        let parent = self.open_or_make(parent)?;
        beneath::refuse_procfs(&parent)?;
        Ok(directories::open_or_make(&parent, path_of(name), follow)?.0)
    }

    /// Links to a file that is beneath the destination already.
    pub(super) fn hard_link(&mut self, linked: &[u8], target: &Target, litter: &Litter) -> Result<()> {
        self.last = None;
        let (parent, name) = split(linked);
        let missing = || unfit("a hard link leads to nothing that is in the destination");
        let parent = match parent {
            b"" => self.directory.try_clone()?,
            parent => open_beneath(&self.directory, path_of(parent), DIRECTORY, Mode::empty())?,
        };
        let stat = fs::statat(&parent, path_of(name), AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        if !matches!(
            FileType::from_raw_mode(stat.st_mode),
            FileType::RegularFile | FileType::Symlink
        ) {
            return Err(unfit("a hard link leads to something that is not a file"));
        }
        match fs::linkat(
            &parent,
            path_of(name),
            target.directory(),
            target.name(),
            AtFlags::empty(),
        ) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
        Ok(replace_by_link(&parent, path_of(name), target, litter)?)
    }

    /// Forgets the directory that is kept open: a name on the way to it may mean something else now.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    fn parent(&mut self, path: &[u8]) -> io::Result<&OwnedFd> {
        let known = self.last.as_ref().is_some_and(|(last, _)| last == path);
        if path.is_empty() {
            return Ok(&self.directory);
        }
        let directory = match self.last.take() {
            Some((_, directory)) if known => directory,
            _ => self.open_or_make(path)?,
        };
        Ok(&self.last.insert((path.to_vec(), directory)).1)
    }

    fn open_or_make(&self, path: &[u8]) -> io::Result<OwnedFd> {
        if path.is_empty() {
            return self.directory.try_clone();
        }
        let open = |path: &[u8]| open_beneath(&self.directory, path_of(path), DIRECTORY, Mode::empty());
        match open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        // From the top down, which is at most once for each directory of the archive.
        let mut directory = self.directory.try_clone()?;
        let mut end = 0;
        for name in path.split(|byte| *byte == b'/') {
            end += name.len() + usize::from(end > 0);
            directory = match open(&path[..end]) {
                Ok(directory) => directory,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    directories::open_or_make(&directory, path_of(name), || open(&path[..end]))?.0
                }
                Err(error) => return Err(error),
            };
        }
        Ok(directory)
    }
}

/// Rename puts it in the place of what is there in one step.
fn replace_by_link(parent: &OwnedFd, name: &Path, target: &Target, litter: &Litter) -> io::Result<()> {
    let directory = target.directory();
    let temporary = litter::temporary_name()?;
    let _noted = litter.note(directory, &temporary);
    fs::linkat(parent, name, directory, &temporary, AtFlags::empty())?;
    let renamed = fs::renameat(directory, &temporary, directory, target.name());
    // Where both are the same file already, a rename does nothing and leaves both names.
    let _gone = fs::unlinkat(directory.as_fd(), &temporary, AtFlags::empty());
    Ok(renamed?)
}

/// A path without its last component, and that.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memrchr(b'/', path) {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
