//! Directories beneath a destination, reached step by step without following a symlink.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::Path,
    rc::Rc,
};

use rustix::{
    fs::{self, AtFlags, CWD, Mode, OFlags, Timestamps},
    io::Errno,
};

use super::names::Name;

const OPEN: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::RDONLY)
    .union(OFlags::CLOEXEC);
const ATTEMPTS: usize = 16;

/// A directory beneath the destination, open.
#[derive(Clone, Debug)]
pub(super) struct Directory(Rc<OwnedFd>);

/// All of them.
pub(super) struct Directories {
    root: Directory,
    /// The last one that was asked for: archives go directory by directory.
    last: Option<(Vec<OsString>, Directory)>,
    /// Those that were made, and how they shall be when everything is in them.
    made: BTreeMap<Name, (Mode, Timestamps)>,
}

/// Something under a temporary name, which is removed unless it gets its own.
pub(super) struct Unfinished {
    directory: Directory,
    name: String,
    finished: bool,
}

// === impl Directories ===

impl Directories {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        // The destination is the caller's word: a link to it is followed.
        let root = fs::openat(CWD, root, OPEN.difference(OFlags::NOFOLLOW), Mode::empty())?;
        Ok(Self {
            root: Directory(Rc::new(root)),
            last: None,
            made: BTreeMap::new(),
        })
    }

    /// The directory that `name` lies in. Missing ones are made.
    pub(super) fn parent(&mut self, name: &Name) -> io::Result<Directory> {
        let above: Vec<OsString> = name.above().map(OsStr::to_owned).collect();
        if let Some((path, directory)) = &self.last
            && *path == above
        {
            return Ok(directory.clone());
        }
        let mut directory = self.root.clone();
        for component in &above {
            directory = directory.enter_or_make(component)?;
        }
        self.last = Some((above, directory.clone()));
        Ok(directory)
    }

    /// Makes a directory. One that is there is taken as it is.
    pub(super) fn make(&mut self, name: &Name, mode: u32, times: Timestamps) -> io::Result<()> {
        let parent = self.parent(name)?;
        // Ours until everything is in it, whatever it shall be then.
        let wide = Mode::from_raw_mode(mode & 0o777) | Mode::RWXU;
        match fs::mkdirat(&parent.0, name.last(), wide) {
            Ok(()) => {}
            // Made on the way to something in it, or by an earlier entry: this one's word counts.
            Err(Errno::EXIST) if self.made.contains_key(name) => {}
            Err(Errno::EXIST) => return parent.enter(name.last()).map(drop),
            Err(error) => return Err(error.into()),
        }
        self.made
            .insert(name.clone(), (Mode::from_raw_mode(mode & 0o777), times));
        Ok(())
    }

    /// Gives the directories that were made their modes and times, the deepest first. Answers with those that failed.
    pub(super) fn finish(&mut self) -> Vec<(Vec<u8>, io::Error)> {
        self.last = None;
        let made = std::mem::take(&mut self.made);
        made.into_iter()
            .rev()
            .filter_map(|(name, (mode, times))| {
                let settled = self.settle(&name, mode, &times);
                settled.err().map(|error| (name.bytes(), error))
            })
            .collect()
    }

    fn settle(&mut self, name: &Name, mode: Mode, times: &Timestamps) -> io::Result<()> {
        let directory = self.parent(name)?.enter(name.last())?;
        let now = Mode::from_raw_mode(fs::fstat(&directory.0)?.st_mode);
        // Not more than it got when it was made, which the umask had a say in.
        if now & mode != now {
            fs::fchmod(&directory.0, now & mode)?;
        }
        fs::futimens(&directory.0, times)?;
        Ok(())
    }
}

// === impl Directory ===

impl Directory {
    fn enter(&self, name: &OsStr) -> io::Result<Self> {
        match fs::openat(&self.0, name, OPEN, Mode::empty()) {
            Ok(opened) => Ok(Self(Rc::new(opened))),
            Err(Errno::LOOP | Errno::NOTDIR) => Err(io::Error::other("a part of its path is there and no directory")),
            Err(error) => Err(error.into()),
        }
    }

    fn enter_or_make(&self, name: &OsStr) -> io::Result<Self> {
        match fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name),
            Err(error) => Err(error.into()),
        }
    }

    /// An empty file. The umask has a say in its mode.
    pub(super) fn temporary_file(&self, mode: u32) -> io::Result<(File, Unfinished)> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode & 0o777);
        self.temporary(|name| fs::openat(&self.0, name, flags, mode).map(File::from))
    }

    /// A link to `target`.
    pub(super) fn temporary_link(&self, target: &[u8]) -> io::Result<Unfinished> {
        let ((), unfinished) = self.temporary(|name| fs::symlinkat(OsStr::from_bytes(target), &self.0, name))?;
        Ok(unfinished)
    }

    fn temporary<T>(&self, make: impl Fn(&str) -> rustix::io::Result<T>) -> io::Result<(T, Unfinished)> {
        for _ in 0..ATTEMPTS {
            let name = format!(".sandgate-{:016x}.part", rand::random::<u64>());
            match make(&name) {
                Ok(made) => {
                    let unfinished = Unfinished {
                        directory: self.clone(),
                        name,
                        finished: false,
                    };
                    return Ok((made, unfinished));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::EXIST.into())
    }
}

// === impl Unfinished ===

impl Unfinished {
    pub(super) fn directory(&self) -> &OwnedFd {
        &self.directory.0
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Gives it its name, in place of a file or link that has it.
    pub(super) fn finish(mut self, name: &OsStr) -> io::Result<()> {
        fs::renameat(&self.directory.0, &self.name, &self.directory.0, name)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing more can be done about it here.
            _ = fs::unlinkat(&self.directory.0, &self.name, AtFlags::empty());
        }
    }
}
