//! Copying files, symlinks and trees.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Uid},
    io::Errno,
    process::geteuid,
};
use sandgate_proto::{
    runtime::v1::{CopyOp, FileInfo},
    v1::ErrorReason,
};

use super::{Context, as_path, at};
use crate::{
    atomic::{self, Finish, Owner, Shared, Staged},
    beneath::{self, open_beneath},
    error::{Error, Result},
    info::{self, PERMISSIONS},
    path::PathArg,
    target::Target,
    view::{make_directory, must_be_regular, stat},
    walk::{Entry, Options, Step, Walker, open_directory},
};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);
const SET_ID_BITS: u32 = 0o6000;

pub(super) fn copy(context: Context<'_>, op: &CopyOp) -> Result<FileInfo> {
    let Context { view, shared, .. } = context;
    let from = view.path(&op.from, &op.from_raw)?;
    let to = view.path(&op.to, &op.to_raw)?;
    let (directory, name) = view.root().parent(from.as_path()).map_err(at(&from))?;
    let copier = Copier {
        shared,
        from: &from,
        to: &to,
        overwrite: op.overwrite,
        keep_owner: false,
    };
    let kind = copier.kind(&directory, &name)?;
    if kind == FileType::Directory && !op.recursive {
        return Err(at(&from)(Errno::ISDIR));
    }
    let target = Target::exact(view, &to, op.make_parents).map_err(at(&to))?;
    copier.copy(&directory, &name, &target)?;
    info::of_name(&to, target.directory(), target.name()).map_err(at(&to))
}

/// Copies one thing, which may be a tree.
pub(super) struct Copier<'a> {
    pub(super) shared: &'a Shared,
    /// As it is shown.
    pub(super) from: &'a PathArg,
    /// As it is shown.
    pub(super) to: &'a PathArg,
    /// Replace files that are there, and merge directories.
    pub(super) overwrite: bool,
    /// Give the copies to the owners of the originals, as far as the user may.
    pub(super) keep_owner: bool,
}

/// The copy of a tree that is under way.
struct Tree {
    top: OwnedFd,
    identity: (u64, u64),
    /// The directory that was written to last, and its path beneath the top.
    current: Option<(Vec<u8>, OwnedFd)>,
    /// Directories that were made, to be given their modes and times when all is in them.
    made: Vec<(Vec<u8>, Stat)>,
}

// === impl Copier ===

impl Copier<'_> {
    /// What is to be copied.
    pub(super) fn kind(&self, directory: &OwnedFd, name: &OsStr) -> Result<FileType> {
        let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(at(self.from))?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    /// Copies `name` to the target.
    pub(super) fn copy(&self, directory: &OwnedFd, name: &OsStr, target: &Target) -> Result<()> {
        match self.kind(directory, name)? {
            FileType::Directory => self.tree(directory, name, target),
            kind => self.leaf(kind, directory, name, target, Path::new("")),
        }
    }

    /// Copies what is not a directory. `relative` is where it is in the tree.
    fn leaf(&self, kind: FileType, from: &OwnedFd, name: &OsStr, target: &Target, relative: &Path) -> Result<()> {
        let (shown_from, shown_to) = (shown(self.from, relative), shown(self.to, relative));
        let failed = |error: io::Error| Error::io(error, &shown_to);
        if kind == FileType::Symlink {
            // As `readlink`: the links of a process tell what files it has open.
            if beneath::belongs_to_process(from).map_err(|error| Error::io(error, &shown_from))? {
                return Err(Error::io(Errno::ACCESS, &shown_from));
            }
            let text = fs::readlinkat(from, name, Vec::new()).map_err(|errno| Error::io(errno, &shown_from))?;
            let _held = self.shared.locks.hold(&[target.key().map_err(failed)?]);
            let text = as_path(text.as_bytes());
            return atomic::symlink(target, text, self.overwrite, &self.shared.litter).map_err(failed);
        }
        if kind != FileType::RegularFile {
            let message = "sockets, FIFOs and devices are not copied";
            return Err(Error::new(ErrorReason::FileNotRegular, message).at(shown_from));
        }
        let source = open_beneath(from, Path::new(name), OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|error| Error::io(error, &shown_from))?;
        let stat = stat(&source, &shown_from)?;
        must_be_regular(&stat, &shown_from)?;
        self.file(source, &stat, target).map_err(failed)
    }

    fn file(&self, source: OwnedFd, stat: &Stat, target: &Target) -> io::Result<()> {
        if target.kind() == Some(FileType::Directory) {
            return Err(Errno::ISDIR.into());
        }
        if !self.overwrite && target.existing().is_some() {
            return Err(Errno::EXIST.into());
        }
        let mut staged = Staged::begin(target, &self.shared.litter)?;
        io::copy(&mut File::from(source), staged.file())?;
        let finish = Finish {
            replace: self.overwrite,
            mode: Some(self.mode(stat)),
            owner: if self.keep_owner {
                Owner::Like(stat.st_uid, stat.st_gid)
            } else {
                Owner::User
            },
            modified: Some(modified(stat)),
        };
        let _held = self.shared.locks.hold(&[target.key()?]);
        staged.commit(target, &finish)?;
        Ok(())
    }

    /// The bits that let a program run as its owner are not carried over to another owner.
    fn mode(&self, stat: &Stat) -> u32 {
        let user = geteuid();
        let same_owner = stat.st_uid == user.as_raw() || (self.keep_owner && user.is_root());
        let mode = stat.st_mode & PERMISSIONS;
        if same_owner { mode } else { mode & !SET_ID_BITS }
    }

    fn tree(&self, from: &OwnedFd, name: &OsStr, target: &Target) -> Result<()> {
        let source = open_beneath(from, Path::new(name), DIRECTORY, Mode::empty()).map_err(at(self.from))?;
        self.refuse_into_itself(&source, target)?;
        let own = stat(&source, self.from)?;
        let mut tree = self.begin(&own, target).map_err(at(self.to))?;
        let mut walker = Walker::new(source, Options::default()).map_err(at(self.from))?;
        while let Some(step) = walker.next() {
            match step {
                Step::Entry(entry) => self.entry(&entry, &mut tree)?,
                Step::Enter(entry) => self.refuse_own_copy(&entry, &tree)?,
                Step::Unreadable { path, error } => return Err(Error::io(error, self.from.join(path))),
            }
        }
        self.finish(&tree).map_err(at(self.to))
    }

    fn begin(&self, own: &Stat, target: &Target) -> io::Result<Tree> {
        let mut made = Vec::new();
        let top = match (target.kind(), self.overwrite) {
            (None, _) => {
                made.push((Vec::new(), *own));
                make_directory(target.directory(), Path::new(target.name()), 0o700)?
            }
            (Some(FileType::Directory), true) => target.open(DIRECTORY)?,
            (Some(_), true) => return Err(Errno::NOTDIR.into()),
            (Some(_), false) => return Err(Errno::EXIST.into()),
        };
        Ok(Tree {
            identity: identity(&fs::fstat(&top)?),
            top,
            current: None,
            made,
        })
    }

    fn entry(&self, entry: &Entry<'_>, tree: &mut Tree) -> Result<()> {
        let relative = as_path(entry.path);
        let shown_to = shown(self.to, relative);
        let failed = |error: io::Error| Error::io(error, &shown_to);
        let parent = parent(entry);
        let directory = tree.directory(parent).and_then(OwnedFd::try_clone).map_err(failed)?;
        if entry.kind == FileType::Directory {
            return self.subdirectory(entry, &directory, tree).map_err(failed);
        }
        let name = OsStr::from_bytes(entry.name.to_bytes());
        let target = Target::new(directory, OsString::from(name)).map_err(failed)?;
        self.leaf(entry.kind, entry.dir, name, &target, relative)
    }

    fn subdirectory(&self, entry: &Entry<'_>, directory: &OwnedFd, tree: &mut Tree) -> io::Result<()> {
        let name = entry.file_name();
        match make_directory(directory, name, 0o700) {
            Ok(_) => {
                let stat = fs::statat(entry.dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                tree.made.push((entry.path.to_vec(), stat));
                Ok(())
            }
            Err(Errno::EXIST) if self.overwrite => {
                let there = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                match FileType::from_raw_mode(there.st_mode) {
                    FileType::Directory => Ok(()),
                    _ => Err(Errno::NOTDIR.into()),
                }
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Last things last: a directory's time changes with what is put in it, and its mode may forbid that.
    fn finish(&self, tree: &Tree) -> io::Result<()> {
        for (path, stat) in tree.made.iter().rev() {
            let directory = open_directory(tree.top.as_fd(), path)?;
            if self.keep_owner {
                // As far as the user may.
                let _kept = fs::fchown(
                    &directory,
                    Some(Uid::from_raw(stat.st_uid)),
                    Some(Gid::from_raw(stat.st_gid)),
                );
            }
            atomic::set_modified(&directory, Some(modified(stat)))?;
            fs::fchmod(&directory, Mode::from_raw_mode(self.mode(stat)))?;
        }
        Ok(())
    }

    /// Before anything is made. Paths can change at any time, which `refuse_own_copy` is for.
    fn refuse_into_itself(&self, source: &OwnedFd, target: &Target) -> Result<()> {
        let source = beneath::real_path(source).map_err(at(self.from))?;
        let directory = beneath::real_path(target.directory()).map_err(at(self.to))?;
        if directory.join(target.name()).starts_with(&source) {
            return Err(self.refusal());
        }
        Ok(())
    }

    fn refuse_own_copy(&self, entry: &Entry<'_>, tree: &Tree) -> Result<()> {
        let stat = fs::statat(entry.dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        if stat.is_ok_and(|stat| identity(&stat) == tree.identity) {
            return Err(self.refusal());
        }
        Ok(())
    }

    fn refusal(&self) -> Error {
        Error::new(ErrorReason::PathInvalid, "a directory can't be copied into itself").at(self.to)
    }
}

// === impl Tree ===

impl Tree {
    fn directory(&mut self, path: &[u8]) -> io::Result<&OwnedFd> {
        if self.current.as_ref().is_none_or(|(current, _)| current != path) {
            self.current = Some((path.to_vec(), open_directory(self.top.as_fd(), path)?));
        }
        Ok(self
            .current
            .as_ref()
            .map(|(_, directory)| directory)
            .ok_or(Errno::NOENT)?)
    }
}

fn parent<'a>(entry: &Entry<'a>) -> &'a [u8] {
    let length = entry.path.len().saturating_sub(entry.name.count_bytes() + 1);
    entry.path.get(..length).unwrap_or_default()
}

fn shown(path: &PathArg, relative: &Path) -> std::path::PathBuf {
    if relative.as_os_str().is_empty() {
        path.as_path().to_owned()
    } else {
        path.as_path().join(relative)
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn modified(stat: &Stat) -> Timespec {
    let time = info::modified(stat);
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.into(),
    }
}
