//! Removing files and trees, by descriptors: whatever is swapped in meanwhile, nothing outside of the tree is touched.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
    vec,
};

use rustix::{
    fs::{self, AtFlags, Dir, Mode, OFlags},
    io::Errno,
};
use sandgate_proto::{
    runtime::v1::{RemoveOp, RemoveResult},
    v1::ErrorReason,
};

use super::{Context, at, errno};
use crate::{
    beneath::{self, open_beneath},
    error::{Error, Result},
    locks::Key,
};

/// Names that are read from a directory at a time.
const BATCH: usize = 1024;
/// Descriptors held. Of a deeper tree the upper ones are closed and found again by `..`.
const MAX_OPEN: usize = 48;
/// How often something may turn out to be not as it was a moment ago, because someone still works there.
const MAX_SURPRISES: usize = 1000;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);

pub(super) fn remove(context: Context<'_>, op: &RemoveOp) -> Result<RemoveResult> {
    let Context { view, shared, .. } = context;
    let path = view.path(&op.path, &op.path_raw)?;
    if beneath::split(path.as_path()).is_err() {
        let message = "the root, and a path that ends in `..`, can't be removed";
        return Err(Error::new(ErrorReason::PathInvalid, message).at(&path));
    }
    let (directory, name) = match view.root().parent(path.as_path()) {
        Err(error) if op.missing_ok && errno(&error) == Some(Errno::NOENT) => {
            return Ok(RemoveResult { removed: 0 });
        }
        other => other.map_err(at(&path))?,
    };
    let removed = if op.recursive {
        // It may take long, so it takes no lock.
        remove_tree(&directory, &name, path.as_path())?
    } else {
        let _held = shared.locks.hold(&[Key::new(&directory, &name).map_err(at(&path))?]);
        remove_one(&directory, &name).map_err(at(&path))?
    };
    if removed == 0 && !op.missing_ok {
        return Err(at(&path)(Errno::NOENT));
    }
    Ok(RemoveResult { removed })
}

/// How many were removed: 0 if there is no such name.
fn remove_one(directory: &OwnedFd, name: &OsStr) -> io::Result<u64> {
    match unlink(directory, name)? {
        Unlinked::Removed => Ok(1),
        Unlinked::Gone => Ok(0),
        Unlinked::Directory => match fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
            Err(Errno::EXIST) => Err(Errno::NOTEMPTY.into()),
            Err(Errno::NOENT) => Ok(0),
            other => Ok(other.map(|()| 1)?),
        },
    }
}

/// Removes a name and, if it is a directory, everything in it. `path` is how it is shown.
pub(super) fn remove_tree(directory: &OwnedFd, name: &OsStr, path: &Path) -> Result<u64> {
    let mut removal = Removal {
        outer: directory,
        levels: Vec::new(),
        removed: 0,
        surprises: 0,
        path: path.parent().unwrap_or(path).to_owned(),
    };
    let done = removal.take(name.to_owned()).and_then(|()| removal.run());
    match done {
        Ok(()) => Ok(removal.removed),
        Err(error) => Err(Error::io(error, &removal.path)),
    }
}

enum Unlinked {
    Removed,
    Gone,
    Directory,
}

fn unlink(directory: &OwnedFd, name: &OsStr) -> io::Result<Unlinked> {
    match fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) => Ok(Unlinked::Removed),
        Err(Errno::NOENT) => Ok(Unlinked::Gone),
        Err(Errno::ISDIR) => Ok(Unlinked::Directory),
        Err(errno) => Err(errno.into()),
    }
}

/// The removal of a tree that is under way.
struct Removal<'a> {
    outer: &'a OwnedFd,
    levels: Vec<Level>,
    removed: u64,
    surprises: usize,
    /// The directory at work; of a failure, the path that failed.
    path: PathBuf,
}

struct Level {
    name: OsString,
    directory: Option<OwnedFd>,
    identity: (u64, u64),
    names: vec::IntoIter<OsString>,
}

// === impl Removal ===

impl Removal<'_> {
    fn run(&mut self) -> io::Result<()> {
        while let Some(level) = self.levels.last_mut() {
            if let Some(name) = level.names.next() {
                self.take(name)?;
                continue;
            }
            level.names = level.read()?;
            if level.names.len() == 0 {
                self.leave()?;
            }
        }
        Ok(())
    }

    /// Removes a name in the directory at work, or goes into it.
    fn take(&mut self, name: OsString) -> io::Result<()> {
        self.path.push(&name);
        let at = match self.levels.last() {
            None => self.outer,
            Some(level) => level.directory.as_ref().ok_or(Errno::NOENT)?,
        };
        match unlink(at, &name)? {
            Unlinked::Removed => self.removed += 1,
            Unlinked::Gone => {}
            Unlinked::Directory => match open_beneath(at, Path::new(&name), DIRECTORY, Mode::empty()) {
                Ok(directory) => return self.enter(name, directory),
                // It may be empty, and then needs no reading.
                Err(error) if errno(&error) == Some(Errno::ACCESS) => {
                    fs::unlinkat(at, &name, AtFlags::REMOVEDIR).map_err(|_| error)?;
                    self.removed += 1;
                }
                // It was replaced by something else: names are read again before the directory is left.
                Err(error) if was_replaced(&error) && self.surprises < MAX_SURPRISES => self.surprises += 1,
                Err(error) => return Err(error),
            },
        }
        self.path.pop();
        Ok(())
    }

    fn enter(&mut self, name: OsString, directory: OwnedFd) -> io::Result<()> {
        self.levels.push(Level {
            name,
            identity: identity(&directory)?,
            directory: Some(directory),
            names: Vec::new().into_iter(),
        });
        if let Some(upper) = self
            .levels
            .len()
            .checked_sub(MAX_OPEN)
            .and_then(|upper| self.levels.get_mut(upper))
        {
            upper.directory = None;
        }
        Ok(())
    }

    /// Removes the directory at work, which was empty a moment ago.
    fn leave(&mut self) -> io::Result<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let at = match self.levels.last_mut() {
            None => self.outer,
            Some(upper) => upper.reopen(level.directory.as_ref())?,
        };
        match fs::unlinkat(at, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) => self.removed += 1,
            // Moved away, or replaced by something that will be read again.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if self.surprises < MAX_SURPRISES => {
                self.surprises += 1;
                let directory = open_beneath(at, Path::new(&level.name), DIRECTORY, Mode::empty())?;
                return self.enter(level.name, directory);
            }
            Err(errno) => return Err(errno.into()),
        }
        self.path.pop();
        Ok(())
    }
}

// === impl Level ===

impl Level {
    fn read(&self) -> io::Result<vec::IntoIter<OsString>> {
        let directory = self.directory.as_ref().ok_or(Errno::NOENT)?;
        let mut names = Vec::new();
        let entries = match Dir::read_from(directory) {
            // Someone else has removed it.
            Err(Errno::NOENT) => return Ok(names.into_iter()),
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
            if names.len() == BATCH {
                break;
            }
        }
        Ok(names.into_iter())
    }

    /// The directory, found again from one in it. A directory that was moved meanwhile has another one above it.
    fn reopen(&mut self, inner: Option<&OwnedFd>) -> io::Result<&OwnedFd> {
        if self.directory.is_none() {
            let flags = DIRECTORY | OFlags::CLOEXEC;
            let above = fs::openat(inner.ok_or(Errno::NOENT)?.as_fd(), "..", flags, Mode::empty())?;
            if identity(&above)? != self.identity {
                return Err(Errno::NOENT.into());
            }
            self.directory = Some(above);
        }
        Ok(self.directory.as_ref().ok_or(Errno::NOENT)?)
    }
}

fn was_replaced(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn identity(directory: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}
