//! Modes and times of directories, set when everything is in them: a file made in a directory changes its time, and one
//! that may not be written could not be filled.

use std::{
    cmp::Reverse,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{self, Mode, OFlags, Timespec};

use crate::{
    atomic,
    error::{Error, Result},
    view::{self, View},
};

/// More are not remembered; they get theirs at once.
const MAX_LATER: usize = 65_536;

/// Directories whose mode or time is yet to be set.
#[derive(Debug, Default)]
pub(super) struct Directories {
    later: Vec<Later>,
}

#[derive(Debug)]
struct Later {
    /// Absolute in the view.
    path: PathBuf,
    identity: (u64, u64),
    mode: Option<u32>,
    modified: Option<Timespec>,
}

/// Opens a directory of that name, or makes it, open to its owner for now. A symlink that leads to a directory will do,
/// if `follow` can open it.
pub(super) fn open_or_make(
    parent: &OwnedFd,
    name: &Path,
    follow: impl FnOnce() -> io::Result<OwnedFd>,
) -> io::Result<(OwnedFd, bool)> {
    match view::make_directory(parent, name, 0o755) {
        Ok(made) => Ok((made, true)),
        Err(rustix::io::Errno::EXIST) => Ok((follow()?, false)),
        Err(errno) => Err(errno.into()),
    }
}

// === impl Directories ===

impl Directories {
    /// Remembers what an open directory shall be.
    pub(super) fn add(
        &mut self,
        directory: &OwnedFd,
        path: PathBuf,
        mode: Option<u32>,
        modified: Option<Timespec>,
    ) -> io::Result<()> {
        if mode.is_none() && modified.is_none() {
            return Ok(());
        }
        if self.later.len() >= MAX_LATER {
            return set(directory, mode, modified);
        }
        let stat = fs::fstat(directory)?;
        self.later.push(Later {
            path,
            identity: (stat.st_dev, stat.st_ino),
            mode,
            modified,
        });
        Ok(())
    }

    /// Sets them all. Calls `failed` for each that can't be.
    pub(super) fn finish(mut self, view: &View, mut failed: impl FnMut(Error)) {
        // The deepest first: one above may close the way. Of two for the same path the later one counts.
        self.later.sort_by_key(|later| Reverse(later.path.as_os_str().len()));
        for later in &self.later {
            if let Err(error) = later.set(view) {
                failed(error);
            }
        }
    }
}

// === impl Later ===

impl Later {
    fn set(&self, view: &View) -> Result<()> {
        let failed = |error: io::Error| Error::io(error, &self.path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = view.root().open(&self.path, flags, Mode::empty()).map_err(failed)?;
        let stat = view::stat(&directory, &self.path)?;
        // Something else has its name by now, and it is not ours to change.
        if (stat.st_dev, stat.st_ino) != self.identity {
            return Ok(());
        }
        set(&directory, self.mode, self.modified).map_err(failed)
    }
}

fn set(directory: &OwnedFd, mode: Option<u32>, modified: Option<Timespec>) -> io::Result<()> {
    if let Some(mode) = mode {
        fs::fchmod(directory, Mode::from_raw_mode(mode))?;
    }
    atomic::set_modified(directory, modified)
}
