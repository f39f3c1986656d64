//! One subscriber as the reader sees it: its directories, and the queue towards it.

use std::{
    collections::HashSet,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{
        self, Dir, FileType,
        inotify::{self, WatchFlags},
    },
    io::Errno,
};
use sandgate_proto::runtime::v1::{FileEvent, file_event::Kind};
use tokio::sync::mpsc;

use super::{Live, limit, tree::Tree};
use crate::{
    error::{Error, Result},
    litter,
    path::{self, PathArg},
    view::View,
    walk,
};

const FLAGS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// What the subscriber is told once its queue is empty.
#[derive(Debug, Default)]
pub(super) struct Fate {
    lost: AtomicBool,
    gone: AtomicBool,
}

/// One subscriber.
#[derive(Debug)]
pub(super) struct Subscriber {
    view: Arc<View>,
    path: PathArg,
    recursive: bool,
    sender: mpsc::Sender<FileEvent>,
    fate: Arc<Fate>,
    pub(super) tree: Tree,
    identity: (u64, u64),
    /// What was reported because it was found in a new directory, and may be in the kernel's queue too.
    found: HashSet<(i32, Vec<u8>)>,
    /// Many writes to one file are one event.
    last_modified: Option<Vec<u8>>,
}

/// What adding directories came to.
#[derive(Debug, Default)]
pub(super) struct Added {
    pub(super) watches: Vec<i32>,
    /// Watches of directories whose place others took.
    pub(super) replaced: Vec<i32>,
}

/// Where a directory is.
#[derive(Clone, Copy)]
struct Place<'a> {
    parent: i32,
    name: &'a [u8],
    /// From where the search for it began.
    path: &'a [u8],
}

/// Something found in a directory.
struct Found {
    name: Vec<u8>,
    directory: bool,
}

// === impl Fate ===

impl Fate {
    /// Events were lost, and nobody was told so far.
    pub(super) fn take_lost(&self) -> bool {
        self.lost.swap(false, Ordering::AcqRel)
    }

    /// The directory is gone.
    pub(super) fn gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

// === impl Subscriber ===

impl Subscriber {
    pub(super) fn new(
        view: Arc<View>,
        path: PathArg,
        recursive: bool,
        sender: mpsc::Sender<FileEvent>,
        fate: Arc<Fate>,
    ) -> Self {
        Self {
            view,
            path,
            recursive,
            sender,
            fate,
            tree: Tree::default(),
            identity: (0, 0),
            found: HashSet::new(),
            last_modified: None,
        }
    }

    /// Watches the directory that was asked for, and those beneath it.
    pub(super) fn start(&mut self, live: &Live) -> Result<Added> {
        let view = self.view.clone();
        let _acting = view.act()?;
        let root = self.view.open_directory(&self.path)?;
        let stat = fs::fstat(&root).map_err(|errno| Error::io(errno, &self.path))?;
        self.identity = (stat.st_dev, stat.st_ino);
        let wd = add_watch(live, &root).map_err(|errno| limit(errno).or_at(&self.path))?;
        self.send(Kind::Watching, Some(Vec::new()), None, true);
        self.tree.insert(wd, None);
        let mut added = Added::default();
        added.watches.push(wd);
        let scanned = self.scan(live, &root, wd, false, &mut added);
        scanned.map_err(|errno| limit(errno).or_at(&self.path))?;
        Ok(added)
    }

    /// Watches a directory that appeared, and reports what is in it already. What can't be watched is an overflow.
    pub(super) fn adopt(&mut self, live: &Live, parent: i32, name: &[u8]) -> Added {
        let mut added = Added::default();
        let Some(path) = self.tree.path(parent, name).filter(|_| self.recursive) else {
            return added;
        };
        let view = self.view.clone();
        let Ok(_acting) = view.act() else { return added };
        let Some(root) = self.root() else { return added };
        let place = Place {
            parent,
            name,
            path: &path,
        };
        if self.enter(live, &root, place, &mut added).is_err() {
            self.lose();
        }
        added
    }

    /// Events were lost: says so, and looks for directories that are not watched yet.
    pub(super) fn recover(&mut self, live: &Live) -> Added {
        self.lose();
        let mut added = Added::default();
        let view = self.view.clone();
        let Ok(_acting) = view.act() else { return added };
        let Some(root) = self.root() else { return added };
        // Adding a watch again gives the same number.
        if let Ok(wd) = add_watch(live, &root)
            && self.tree.is_root(wd)
        {
            let _lost_already = self.scan(live, &root, wd, false, &mut added);
        }
        added
    }

    /// New events were read.
    pub(super) fn new_batch(&mut self) {
        self.last_modified = None;
    }

    /// The kernel has nothing more to say for now.
    pub(super) fn caught_up(&mut self) {
        self.found.clear();
    }

    pub(super) fn created(&mut self, wd: i32, name: &[u8], directory: bool) {
        if !self.found.remove(&(wd, name.to_vec())) {
            self.send(Kind::Created, self.tree.path(wd, name), None, directory);
        }
    }

    pub(super) fn modified(&mut self, wd: i32, name: &[u8], directory: bool) {
        let path = self.tree.path(wd, name);
        if path.is_some() && path != self.last_modified {
            self.last_modified.clone_from(&path);
            self.put(Kind::Modified, path, None, directory);
        }
    }

    pub(super) fn deleted(&mut self, wd: i32, name: &[u8], directory: bool) {
        self.found.remove(&(wd, name.to_vec()));
        self.send(Kind::Deleted, self.tree.path(wd, name), None, directory);
    }

    pub(super) fn moved(&mut self, from: (i32, &[u8]), to: (i32, &[u8]), directory: bool) {
        self.found.remove(&(from.0, from.1.to_vec()));
        let path = self.tree.path(to.0, to.1);
        // Our own way to replace a file.
        if litter::is_temporary(from.1) {
            self.send(Kind::Modified, path, None, directory);
        } else {
            self.send(Kind::Moved, path, self.tree.path(from.0, from.1), directory);
        }
    }

    /// The directory that was asked for is gone; the queue ends with that.
    pub(super) fn gone(&self) {
        self.fate.gone.store(true, Ordering::Release);
    }

    /// The directory that was asked for, if it is still where it was.
    fn root(&self) -> Option<OwnedFd> {
        // It is not kept open: that would keep its end from being reported.
        let root = self.view.open_directory(&self.path).ok()?;
        let stat = fs::fstat(&root).ok()?;
        ((stat.st_dev, stat.st_ino) == self.identity).then_some(root)
    }

    /// Watches one directory, and then what is in it.
    fn enter(&mut self, live: &Live, root: &OwnedFd, place: Place<'_>, added: &mut Added) -> Result<(), Errno> {
        let Some(wd) = self.watch(live, root, place, added)? else {
            return Ok(());
        };
        let Ok(directory) = walk::open_directory(root.as_fd(), place.path) else {
            return Ok(());
        };
        self.scan(live, &directory, wd, true, added)
    }

    /// Goes through a directory that is watched already, and those beneath it. Each is watched before it is read, so that
    /// nothing falls between the two.
    fn scan(&mut self, live: &Live, start: &OwnedFd, wd: i32, report: bool, added: &mut Added) -> Result<(), Errno> {
        let mut waiting = vec![(wd, Vec::new())];
        while let Some((wd, path)) = waiting.pop().filter(|_| self.recursive) {
            let Ok(directory) = walk::open_directory(start.as_fd(), &path) else {
                continue;
            };
            for found in entries(&directory) {
                if report {
                    self.created(wd, &found.name, found.directory);
                    self.found.insert((wd, found.name.clone()));
                }
                if found.directory {
                    let path = join(&path, &found.name);
                    let place = Place {
                        parent: wd,
                        name: &found.name,
                        path: &path,
                    };
                    if let Some(child) = self.watch(live, start, place, added)? {
                        waiting.push((child, path));
                    }
                }
            }
        }
        Ok(())
    }

    /// `None` if it is gone, closed to the user, or of the kernel's own trees.
    fn watch(
        &mut self,
        live: &Live,
        start: &OwnedFd,
        place: Place<'_>,
        added: &mut Added,
    ) -> Result<Option<i32>, Errno> {
        let opened = walk::open_directory(start.as_fd(), place.path);
        let watched = opened.and_then(|directory| {
            if walk::is_pseudo(&directory)? {
                Err(Errno::ACCESS)
            } else {
                add_watch(live, &directory)
            }
        });
        match watched {
            Ok(wd) => {
                added.watches.push(wd);
                added
                    .replaced
                    .extend(self.tree.insert(wd, Some((place.parent, place.name))));
                Ok(Some(wd))
            }
            Err(errno @ (Errno::NOSPC | Errno::NOMEM | Errno::MFILE | Errno::NFILE)) => Err(errno),
            Err(_) => Ok(None),
        }
    }

    fn send(&mut self, kind: Kind, path: Option<Vec<u8>>, from: Option<Vec<u8>>, directory: bool) {
        self.last_modified = None;
        self.put(kind, path, from, directory);
    }

    fn put(&self, kind: Kind, path: Option<Vec<u8>>, from: Option<Vec<u8>>, directory: bool) {
        let Some(path) = path else { return };
        if path
            .rsplit(|byte| *byte == b'/')
            .next()
            .is_some_and(litter::is_temporary)
        {
            return;
        }
        // Until the subscriber knows of the loss, more makes no sense to it.
        if self.fate.lost.load(Ordering::Acquire) {
            return;
        }
        let shown = |path: Vec<u8>| {
            let whole = if path.is_empty() {
                self.path.as_path().to_owned()
            } else {
                self.path.join(&path)
            };
            path::twins(path::bytes(&whole))
        };
        let (path, path_raw) = shown(path);
        let (moved_from, moved_from_raw) = from.map(shown).unwrap_or_default();
        let event = FileEvent {
            kind: kind.into(),
            path,
            path_raw,
            moved_from,
            moved_from_raw,
            directory,
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(event) {
            self.lose();
        }
    }

    fn lose(&self) {
        self.fate.lost.store(true, Ordering::Release);
    }
}

fn add_watch(live: &Live, directory: &OwnedFd) -> Result<i32, Errno> {
    inotify::add_watch(&live.inotify, format!("/proc/self/fd/{}", directory.as_raw_fd()), FLAGS)
}

fn entries(directory: &OwnedFd) -> Vec<Found> {
    let Ok(reader) = Dir::read_from(directory) else {
        return Vec::new();
    };
    let entries = reader
        .flatten()
        .filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b".."));
    let found = entries.map(|entry| Found {
        name: entry.file_name().to_bytes().to_vec(),
        directory: match entry.file_type() {
            FileType::Unknown => fs::statat(directory, entry.file_name(), fs::AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            kind => kind == FileType::Directory,
        },
    });
    found.collect()
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        name.to_vec()
    } else {
        [path, name].join(&b'/')
    }
}
