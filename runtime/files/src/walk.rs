//! A walk over a directory tree by descriptors, never by path strings, so that nothing swapped in meanwhile can lead it
//! out of the tree.
//!
//! A directory is read whole when it is entered and its children are opened by one name relative to its descriptor,
//! without following symlinks. Names come sorted if asked for, and then the walk yields paths in bytewise order of the
//! whole path: `a`, `a.c`, `a/b`. For that a directory has two places among its siblings, as `a` and, for what is in it,
//! as `a/`.

use std::{
    cmp::Ordering,
    ffi::{CStr, OsStr},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::Arc,
    vec,
};

use rustix::{
    fd::{AsFd as _, BorrowedFd, OwnedFd},
    fs::{self, AtFlags, FileType, Mode, OFlags, PROC_SUPER_MAGIC, RawDir, ResolveFlags},
    io::Errno,
};

use crate::path::MAX_PATH;

/// Descriptors that a walk holds at most; of a deeper one the upper levels are closed and opened again on the way back.
const MAX_OPEN: usize = 48;
const READ_BUFFER: usize = 32 * 1024;
const SYSFS_MAGIC: u32 = 0x6265_6572;
const OPEN_DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// How to walk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// In bytewise order of paths; otherwise as the file system has them.
    pub sorted: bool,
    /// How many levels to go down: 1 is the start's own entries. 0: all.
    pub max_depth: usize,
}

/// One step of a walk.
#[derive(Debug)]
pub enum Step<'a> {
    /// Something is there.
    Entry(Entry<'a>),
    /// The walk goes into this directory next, unless [`Walker::skip`] is called now.
    Enter(Entry<'a>),
    /// What is in this directory can't be listed (any more), and was left out.
    Unreadable {
        /// Relative to the start.
        path: &'a [u8],
        /// Why.
        error: Errno,
    },
}

/// What a walk came upon.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Relative to the start.
    pub path: &'a [u8],
    /// The last component of `path`.
    pub name: &'a CStr,
    /// What the directory said it is. It may have become something else since.
    pub kind: FileType,
    /// 1 for the start's own entries.
    pub depth: usize,
    /// The directory that holds it: open `name` relative to this with `O_NOFOLLOW`.
    pub dir: &'a Arc<OwnedFd>,
}

/// A walk that is under way.
pub struct Walker {
    options: Options,
    levels: Vec<Level>,
    /// Of the entry that was yielded last, or of the directory that is being read.
    path: Vec<u8>,
    /// The directory that was announced by `Step::Enter`.
    announced: Option<Item>,
    /// The walk began in procfs or sysfs, so it may stay there.
    pseudo: bool,
    buffer: Vec<u8>,
}

struct Level {
    dir: Option<Arc<OwnedFd>>,
    identity: (u64, u64),
    /// All names, each with its NUL.
    names: Vec<u8>,
    items: vec::IntoIter<Item>,
    path_len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    start: usize,
    /// Without the NUL.
    len: usize,
    kind: FileType,
    /// This is the place of what is in the directory, not of itself.
    inside: bool,
}

enum Found {
    Entry(Item),
    Enter(Item),
    Unreadable(Errno),
}

// === impl Entry ===

impl<'a> Entry<'a> {
    /// `name`, for functions that take paths.
    pub fn file_name(&self) -> &'a Path {
        Path::new(OsStr::from_bytes(self.name.to_bytes()))
    }
}

// === impl Walker ===

impl Walker {
    /// Begins at a directory that is open for reading.
    ///
    /// # Errors
    /// What reading the directory said.
    pub fn new(start: OwnedFd, options: Options) -> Result<Self, Errno> {
        let mut walker = Self {
            options,
            levels: Vec::new(),
            path: Vec::new(),
            announced: None,
            pseudo: is_pseudo(&start)?,
            buffer: Vec::with_capacity(READ_BUFFER),
        };
        let level = walker.read_level(start)?;
        walker.levels.push(level);
        Ok(walker)
    }

    /// Does not go into the directory that was announced last.
    pub fn skip(&mut self) {
        self.announced = None;
    }

    /// The next step; `None` at the end.
    // Not an `Iterator`: a step borrows the walker's buffers.
    #[expect(clippy::should_implement_trait, reason = "a lending iterator")]
    pub fn next(&mut self) -> Option<Step<'_>> {
        let found = self.find()?;
        let depth = self.levels.len();
        let (item, enter) = match found {
            Found::Unreadable(error) => {
                return Some(Step::Unreadable {
                    path: &self.path,
                    error,
                });
            }
            Found::Entry(item) => (item, false),
            Found::Enter(item) => (item, true),
        };
        let level = self.levels.last()?;
        let entry = Entry {
            path: &self.path,
            name: level.name(item),
            kind: item.kind,
            depth,
            dir: level.dir.as_ref()?,
        };
        Some(if enter { Step::Enter(entry) } else { Step::Entry(entry) })
    }

    fn find(&mut self) -> Option<Found> {
        if let Some(item) = self.announced.take() {
            match self.enter(item) {
                Ok(()) => {}
                Err(error) => return Some(Found::Unreadable(error)),
            }
        }
        loop {
            let level = self.levels.last_mut()?;
            let Some(item) = level.items.next() else {
                self.levels.pop();
                continue;
            };
            self.path.truncate(level.path_len);
            if level.dir.is_none() {
                match self.reopen() {
                    Ok(dir) => self.levels.last_mut()?.dir = Some(dir),
                    Err(error) => {
                        self.levels.pop();
                        return Some(Found::Unreadable(error));
                    }
                }
            }
            let level = self.levels.last()?;
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(level.name(item).to_bytes());
            if !item.inside {
                return Some(Found::Entry(item));
            }
            self.announced = Some(item);
            return Some(Found::Enter(item));
        }
    }

    /// Opens and reads the directory whose path is in `self.path`.
    fn enter(&mut self, item: Item) -> Result<(), Errno> {
        let level = self.levels.last().ok_or(Errno::NOENT)?;
        let parent = level.dir.as_ref().ok_or(Errno::NOENT)?;
        // What procfs tells of processes is closed to file calls: see `beneath`.
        if self.pseudo && level.name(item).to_bytes().iter().all(u8::is_ascii_digit) {
            return Ok(());
        }
        let dir = fs::openat(parent, level.name(item), OPEN_DIR, Mode::empty())?;
        if !self.pseudo && is_pseudo(&dir)? {
            return Ok(());
        }
        let level = self.read_level(dir)?;
        self.levels.push(level);
        self.close_upper();
        Ok(())
    }

    /// The start stays open: everything else can be found again from there.
    fn close_upper(&mut self) {
        if self.levels.len() > MAX_OPEN {
            let upper = self.levels.len() - MAX_OPEN;
            self.levels[upper].dir = None;
        }
    }

    /// Opens the directory at the top of the stack again, from the start, by its components.
    fn reopen(&self) -> Result<Arc<OwnedFd>, Errno> {
        let level = self.levels.last().ok_or(Errno::NOENT)?;
        let start = self
            .levels
            .first()
            .and_then(|level| level.dir.as_ref())
            .ok_or(Errno::NOENT)?;
        let dir = open_directory(start.as_fd(), &self.path)?;
        if identity(&dir)? == level.identity {
            Ok(Arc::new(dir))
        } else {
            Err(Errno::NOENT)
        }
    }

    fn read_level(&mut self, dir: OwnedFd) -> Result<Level, Errno> {
        let mut level = Level {
            identity: identity(&dir)?,
            dir: None,
            names: Vec::new(),
            items: Vec::new().into_iter(),
            path_len: self.path.len(),
        };
        let bottom = self.options.max_depth != 0 && self.levels.len() + 1 >= self.options.max_depth;
        let mut items = Vec::new();
        let mut entries = RawDir::new(&dir, uninit(&mut self.buffer));
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => continue,
                },
                kind => kind,
            };
            let item = Item {
                start: level.names.len(),
                len: name.to_bytes().len(),
                kind,
                inside: false,
            };
            level.names.extend_from_slice(name.to_bytes_with_nul());
            items.push(item);
            if kind == FileType::Directory && !bottom {
                items.push(Item { inside: true, ..item });
            }
        }
        if self.options.sorted {
            items.sort_unstable_by(|a, b| level.order(*a, *b));
        }
        level.items = items.into_iter();
        level.dir = Some(Arc::new(dir));
        Ok(level)
    }
}

// === impl Level ===

impl Level {
    fn name(&self, item: Item) -> &CStr {
        CStr::from_bytes_with_nul(&self.names[item.start..=item.start + item.len]).unwrap_or_default()
    }

    fn order(&self, a: Item, b: Item) -> Ordering {
        let name = |item: Item| &self.names[item.start..item.start + item.len];
        if !a.inside && !b.inside {
            return name(a).cmp(name(b));
        }
        let key = |item: Item| name(item).iter().copied().chain(item.inside.then_some(b'/'));
        key(a).cmp(key(b))
    }
}

/// Opens a directory beneath another one. There may be no symlink in the path, which may be longer than what the kernel
/// takes at once.
pub(crate) fn open_directory(start: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = |at: BorrowedFd<'_>, path: &[u8]| fs::openat2(at, path, OPEN_DIR, Mode::empty(), resolve);
    let mut dir = open(start, b".")?;
    let mut rest = path;
    while !rest.is_empty() {
        let cut = if rest.len() <= MAX_PATH {
            rest.len()
        } else {
            memchr::memrchr(b'/', &rest[..MAX_PATH]).ok_or(Errno::NAMETOOLONG)?
        };
        dir = open(dir.as_fd(), &rest[..cut])?;
        rest = rest.get(cut + 1..).unwrap_or_default();
    }
    Ok(dir)
}

fn uninit(buffer: &mut Vec<u8>) -> &mut [MaybeUninit<u8>] {
    buffer.clear();
    buffer.spare_capacity_mut()
}

fn identity(dir: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = fs::fstat(dir)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The kernel's own trees are large, change by themselves, and reading some of their files has effects.
pub(crate) fn is_pseudo(dir: &OwnedFd) -> Result<bool, Errno> {
    let magic = fs::fstatfs(dir)?.f_type;
    Ok(magic == PROC_SUPER_MAGIC || magic == SYSFS_MAGIC.into())
}

#[cfg(test)]
mod tests;
