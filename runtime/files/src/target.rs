//! The place that a file is written to: one name in an open directory.
//!
//! A caller's path is resolved once. What happens to the path afterwards, a directory swapped for a symlink say, does not
//! matter any more.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{
    beneath::{self, open_beneath},
    locks::Key,
    path::PathArg,
    view::View,
};

/// As the kernel's own limit.
const MAX_LINKS: usize = 40;

/// A place for a file: an open directory and a name in it. The path that led here is not looked at again.
#[derive(Debug)]
pub struct Target {
    directory: OwnedFd,
    name: OsString,
    existing: Option<Stat>,
}

// === impl Target ===

impl Target {
    /// The place for a file at `path`, or, if a symlink is there, the place that this leads to beneath the root. EISDIR if
    /// the path is written as a directory.
    pub fn follow(view: &View, path: &PathArg, make_parents: bool) -> io::Result<Self> {
        if path.names_directory() {
            return Err(Errno::ISDIR.into());
        }
        let mut target = Self::exact(view, path, make_parents)?;
        if !target.is_symlink() {
            return Ok(target);
        }
        // The kernel refuses to follow some symlinks (fs.protected_symlinks); then so do we.
        match view.root().open(path.as_path(), OFlags::PATH, Mode::empty()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut at = path.as_path().to_owned();
        for _ in 0..MAX_LINKS {
            at = target.link_leads_to(&at)?;
            let (directory, name) = view.root().parent(&at).map_err(directory_if_unnamed)?;
            target = Self::new(directory, name)?;
            if !target.is_symlink() {
                return Ok(target);
            }
        }
        Err(Errno::LOOP.into())
    }

    /// The place that `path` names; a symlink that is there is not followed.
    pub fn exact(view: &View, path: &PathArg, make_parents: bool) -> io::Result<Self> {
        let (parent, name) = beneath::split(path.as_path())?;
        let directory = if make_parents {
            view.make_or_open(parent)?
        } else {
            view.root()
                .open(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?
        };
        Self::new(directory, name.to_owned())
    }

    /// A name in a directory that is open already. The name has one component.
    pub fn new(directory: OwnedFd, name: OsString) -> io::Result<Self> {
        beneath::refuse_procfs(&directory)?;
        let mut target = Self {
            directory,
            name,
            existing: None,
        };
        target.look()?;
        Ok(target)
    }

    /// Looks again at what is there: for after its lock was taken.
    pub fn look(&mut self) -> io::Result<()> {
        self.existing = match fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        Ok(())
    }

    /// What was there when it was last looked at.
    pub fn existing(&self) -> Option<&Stat> {
        self.existing.as_ref()
    }

    /// The open directory.
    pub fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// The name in it.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// What to lock while it is checked and replaced.
    pub fn key(&self) -> io::Result<Key> {
        Ok(Key::new(&self.directory, &self.name)?)
    }

    /// Opens what is there, without following a symlink.
    pub fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        open_beneath(
            &self.directory,
            Path::new(&self.name),
            flags | OFlags::NOFOLLOW,
            Mode::empty(),
        )
    }

    /// Makes an empty file with exactly these permission bits. EEXIST if something is there.
    pub fn create(&self, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
        create(&self.directory, &self.name, flags, mode)
    }

    /// What kind of thing was there.
    pub fn kind(&self) -> Option<FileType> {
        self.existing.map(|stat| FileType::from_raw_mode(stat.st_mode))
    }

    fn is_symlink(&self) -> bool {
        self.kind() == Some(FileType::Symlink)
    }

    fn link_leads_to(&self, at: &Path) -> io::Result<PathBuf> {
        let text = fs::readlinkat(&self.directory, &self.name, Vec::new())?;
        let text = Path::new(OsStr::from_bytes(text.as_bytes()));
        Ok(beneath::split(at)?.0.join(text))
    }
}

/// Makes an empty file with exactly these permission bits, whatever the umask is.
pub(crate) fn create(directory: &OwnedFd, name: &OsStr, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = open_beneath(directory, Path::new(name), flags, Mode::RUSR | Mode::WUSR)?;
    fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file)
}

fn directory_if_unnamed(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::INVAL) => Errno::ISDIR.into(),
        _ => error,
    }
}
