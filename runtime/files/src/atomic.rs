//! Putting a file in its place whole.
//!
//! Content goes to a file without a name in the same directory. It is given its name by `linkat` if nothing is there, or
//! by `rename` over what is. A killed runtime leaves the old file or the new one. Nothing is synced to the disk: a crash
//! of the machine is not covered. Extended attributes and ACLs of a replaced file are not kept.
//!
//! Where a file can't be replaced it is written in place, which is not atomic: a mount point, a special file, and a file
//! that the user may write in a directory it may not, or whose owner it can't keep.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Seek as _, SeekFrom, Write as _},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{
        self, Access, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid,
    },
    io::Errno,
};

use crate::{
    beneath::open_beneath,
    info::PERMISSIONS,
    litter::{self, Litter, Noted},
    locks::Locks,
    target::{Target, create},
};

const NEW_FILE_MODE: u32 = 0o644;

/// What all calls share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Held while a name's file is checked and replaced.
    pub locks: Locks,
    /// Temporary names to remove after a crash.
    pub litter: Litter,
}

/// Content on its way to a target. Dropped before [`Staged::commit`], it leaves nothing behind, unless it had to be written
/// in place.
#[derive(Debug)]
pub struct Staged {
    file: File,
    place: Place,
    litter: Litter,
}

#[derive(Debug)]
enum Place {
    Unnamed,
    Named(Temporary),
    /// It is the target itself.
    Itself,
}

/// A named temporary, removed when dropped.
#[derive(Debug)]
struct Temporary {
    directory: OwnedFd,
    name: OsString,
    _noted: Noted,
}

/// How staged content takes its place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finish {
    /// Replace what is there. Otherwise that is EEXIST.
    pub replace: bool,
    /// Permission bits; none: those of the replaced file, else 0644.
    pub mode: Option<u32>,
    /// Who owns it.
    pub owner: Owner,
    /// Time of change to set; none: now.
    pub modified: Option<Timespec>,
}

/// Who owns a new file.
#[derive(Clone, Copy, Debug, Default)]
pub enum Owner {
    /// The owner of the file that is replaced; without one the user.
    #[default]
    Replaced,
    /// The user.
    User,
    /// This user and group, if the acting user may give files away; else as `User`.
    Like(u32, u32),
}

// === impl Staged ===

impl Staged {
    /// Begins to write a new file for `target`.
    ///
    /// # Errors
    /// EISDIR for a directory, EACCES for a file that the user may not write.
    pub fn begin(target: &Target, litter: &Litter) -> io::Result<Self> {
        let unnamed = match target.kind() {
            Some(FileType::Directory) => return Err(Errno::ISDIR.into()),
            None | Some(FileType::Symlink) => unnamed(target),
            Some(FileType::RegularFile) => {
                // Replacing asks nothing of the file itself; a user that may not write it shall not get around that.
                let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
                fs::accessat(target.directory(), target.name(), Access::WRITE_OK, flags)?;
                unnamed(target)
            }
            Some(_) => return Self::in_place(target, litter),
        };
        let staged = match unnamed {
            Ok(file) => return Ok(Self::new(file, Place::Unnamed, litter)),
            Err(error) if lacks_unnamed(&error) => named(target, litter),
            Err(error) => Err(error),
        };
        match staged {
            Ok((file, temporary)) => Ok(Self::new(file, Place::Named(temporary), litter)),
            Err(error) if target.kind() == Some(FileType::RegularFile) && is_denied(&error) => {
                Self::in_place(target, litter)
            }
            Err(error) => Err(error),
        }
    }

    /// The file that the content goes to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Puts the file in its place. The caller holds the lock of the target.
    ///
    /// # Errors
    /// EEXIST unless it may replace. Whatever fails, the old file stays, unless it is one that can only be written in
    /// place.
    pub fn commit(mut self, target: &Target, finish: &Finish) -> io::Result<Stat> {
        if matches!(self.place, Place::Itself) {
            self.cut_and_set(finish)?;
            return Ok(fs::fstat(&self.file)?);
        }
        match self.settle(target, finish) {
            Ok(()) => Ok(fs::fstat(&self.file)?),
            Err(error) if finish.replace && only_in_place(&error) => self.pour(target, finish, error),
            Err(error) => Err(error),
        }
    }

    fn new(file: OwnedFd, place: Place, litter: &Litter) -> Self {
        Self {
            file: File::from(file),
            place,
            litter: litter.clone(),
        }
    }

    fn in_place(target: &Target, litter: &Litter) -> io::Result<Self> {
        Ok(Self::new(target.open(OFlags::WRONLY)?, Place::Itself, litter))
    }

    /// Gives the finished file its owner, mode, time and name.
    fn settle(&mut self, target: &Target, finish: &Finish) -> io::Result<()> {
        let old = match fs::statat(target.directory(), target.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) if !finish.replace => return Err(Errno::EXIST.into()),
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let replaced = old.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        self.set_owner(replaced.as_ref(), finish.owner)?;
        let old_mode = replaced.map(|stat| stat.st_mode & PERMISSIONS);
        let mode = finish.mode.or(old_mode).unwrap_or(NEW_FILE_MODE);
        fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        set_modified(&self.file, finish.modified)?;
        if old.is_none() && self.link_new(target)? {
            return Ok(());
        }
        self.replace(target, finish.replace)
    }

    fn set_owner(&self, replaced: Option<&Stat>, owner: Owner) -> io::Result<()> {
        let wanted = match (owner, replaced) {
            (Owner::Replaced, Some(stat)) => (stat.st_uid, stat.st_gid),
            (Owner::Like(uid, gid), _) => (uid, gid),
            _ => return Ok(()),
        };
        let own = fs::fstat(&self.file)?;
        if wanted == (own.st_uid, own.st_gid) {
            return Ok(());
        }
        let set = fs::fchown(&self.file, Some(Uid::from_raw(wanted.0)), Some(Gid::from_raw(wanted.1)));
        match (owner, set) {
            (Owner::Like(..), Err(Errno::PERM)) => Ok(()),
            (_, set) => Ok(set?),
        }
    }

    /// Whether an unnamed file got the target's name, because nothing had it.
    fn link_new(&self, target: &Target) -> io::Result<bool> {
        if !matches!(self.place, Place::Unnamed) {
            return Ok(false);
        }
        match link(&self.file, target.directory(), target.name()) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn replace(&mut self, target: &Target, may_replace: bool) -> io::Result<()> {
        let temporary = match std::mem::replace(&mut self.place, Place::Unnamed) {
            Place::Named(temporary) => temporary,
            _ => Temporary::link(&self.file, target.directory(), &self.litter)?,
        };
        if may_replace {
            fs::renameat(&temporary.directory, &temporary.name, target.directory(), target.name())?;
        } else {
            rename_new(&temporary.directory, &temporary.name, target.directory(), target.name())?;
        }
        Ok(())
    }

    /// Copies the staged content into the file that is there. `cause` is why it could not be replaced.
    fn pour(mut self, target: &Target, finish: &Finish, cause: io::Error) -> io::Result<Stat> {
        let is_file = fs::statat(target.directory(), target.name(), AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        if !is_file {
            return Err(cause);
        }
        let mut there = Self::in_place(target, &self.litter)?;
        self.file.seek(SeekFrom::Start(0))?;
        io::copy(&mut self.file, &mut there.file)?;
        there.cut_and_set(finish)?;
        Ok(fs::fstat(&there.file)?)
    }

    /// Ends a write in place.
    fn cut_and_set(&mut self, finish: &Finish) -> io::Result<()> {
        let kind = FileType::from_raw_mode(fs::fstat(&self.file)?.st_mode);
        self.file.flush()?;
        if kind == FileType::RegularFile {
            let end = self.file.stream_position()?;
            fs::ftruncate(&self.file, end)?;
        }
        if let Some(mode) = finish.mode {
            fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        set_modified(&self.file, finish.modified)
    }
}

// === impl Temporary ===

impl Temporary {
    /// Names an unnamed file.
    fn link(file: &File, directory: &OwnedFd, litter: &Litter) -> io::Result<Self> {
        let temporary = Self::new(directory, litter)?;
        link(file, directory, &temporary.name)?;
        Ok(temporary)
    }

    /// Chooses and notes a name. Nothing has it yet.
    fn new(directory: &OwnedFd, litter: &Litter) -> io::Result<Self> {
        let name = litter::temporary_name()?;
        Ok(Self {
            _noted: litter.note(directory, &name),
            directory: directory.try_clone()?,
            name,
        })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename it is not there, and the name is nobody else's.
        let _gone = fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
    }
}

/// Makes a symlink, atomically in the place of what is there if it may replace that. EEXIST otherwise.
pub fn symlink(target: &Target, text: &Path, replace: bool, litter: &Litter) -> io::Result<()> {
    match fs::symlinkat(text, target.directory(), target.name()) {
        Err(Errno::EXIST) if replace => {}
        other => return Ok(other?),
    }
    let temporary = Temporary::new(target.directory(), litter)?;
    fs::symlinkat(text, target.directory(), &temporary.name)?;
    Ok(fs::renameat(
        target.directory(),
        &temporary.name,
        target.directory(),
        target.name(),
    )?)
}

/// Renames without replacing: EEXIST if something has the new name.
pub fn rename_new(from: &OwnedFd, name: &OsStr, to: &OwnedFd, new_name: &OsStr) -> rustix::io::Result<()> {
    match fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE) {
        // Some file systems can't say it in one step.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return other,
    }
    match fs::statat(to, new_name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => fs::renameat(from, name, to, new_name),
        Err(errno) => Err(errno),
    }
}

/// Sets the time of change, if one is given.
pub fn set_modified(file: impl AsFd, modified: Option<Timespec>) -> io::Result<()> {
    let Some(modified) = modified else { return Ok(()) };
    let omit = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_OMIT,
    };
    let times = Timestamps {
        last_access: omit,
        last_modification: modified,
    };
    Ok(fs::futimens(file, &times)?)
}

fn unnamed(target: &Target) -> io::Result<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    open_beneath(target.directory(), Path::new("."), flags, Mode::RUSR | Mode::WUSR)
}

fn named(target: &Target, litter: &Litter) -> io::Result<(OwnedFd, Temporary)> {
    let temporary = Temporary::new(target.directory(), litter)?;
    let file = create(target.directory(), &temporary.name, OFlags::RDWR, 0o600)?;
    Ok((file, temporary))
}

fn link(file: &File, directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    // ENOENT without a capability, unless the same credentials opened the file (since Linux 6.10).
    match fs::linkat(file, "", directory, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT | Errno::PERM) => {}
        other => return other,
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::linkat(fs::CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW)
}

fn lacks_unnamed(error: &io::Error) -> bool {
    // ENOENT and EISDIR come from kernels and file systems that take the flag for an open of the directory.
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT | Errno::NOSYS | Errno::ACCESS | Errno::PERM
        )
    )
}

fn is_denied(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)
    )
}

fn only_in_place(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::BUSY | Errno::XDEV | Errno::ACCESS | Errno::PERM)
    )
}

#[cfg(test)]
mod tests {
    use std::{fs::read_to_string, os::unix::fs::MetadataExt as _};

    use tempfile::TempDir;

    use super::*;

    const REPLACE: Finish = Finish {
        replace: true,
        mode: None,
        owner: Owner::Replaced,
        modified: None,
    };

    fn target(directory: &TempDir) -> Target {
        let opened = fs::open(directory.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Target::new(opened, OsString::from("f")).unwrap()
    }

    fn staged(target: &Target, is_named: bool) -> Staged {
        let litter = Litter::default();
        let mut staged = if is_named {
            // As on a file system without unnamed files.
            let (file, temporary) = named(target, &litter).unwrap();
            Staged::new(file, Place::Named(temporary), &litter)
        } else {
            Staged::begin(target, &litter).unwrap()
        };
        staged.file().write_all(b"new").unwrap();
        staged
    }

    fn count(directory: &TempDir) -> usize {
        directory.path().read_dir().unwrap().count()
    }

    #[test]
    fn content_appears_whole_or_not_at_all() {
        for is_named in [false, true] {
            let directory = TempDir::new().unwrap();
            let path = directory.path().join("f");
            let target = target(&directory);
            let unfinished = staged(&target, is_named);
            assert_eq!(count(&directory), usize::from(is_named));
            drop(unfinished);
            assert_eq!(count(&directory), 0);

            let stat = staged(&target, is_named).commit(&target, &Finish::default()).unwrap();
            assert_eq!((stat.st_size, stat.st_mode & PERMISSIONS, stat.st_nlink), (3, 0o644, 1));
            std::fs::write(&path, "old").unwrap();
            let error = staged(&target, is_named)
                .commit(&target, &Finish::default())
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(read_to_string(&path).unwrap(), "old");
            let finish = Finish {
                mode: Some(0o600),
                modified: Some(Timespec { tv_sec: 7, tv_nsec: 8 }),
                ..REPLACE
            };
            staged(&target, is_named).commit(&target, &finish).unwrap();
            assert_eq!(read_to_string(&path).unwrap(), "new");
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(
                (metadata.mode() & PERMISSIONS, metadata.mtime(), metadata.mtime_nsec()),
                (0o600, 7, 8)
            );
            assert_eq!(count(&directory), 1);
        }
    }

    #[test]
    fn what_came_meanwhile_is_replaced_or_kept() {
        for is_named in [false, true] {
            let directory = TempDir::new().unwrap();
            let path = directory.path().join("f");
            let target = target(&directory);
            let (first, second) = (staged(&target, is_named), staged(&target, is_named));
            std::fs::write(&path, "meanwhile").unwrap();
            assert!(first.commit(&target, &Finish::default()).is_err());
            assert_eq!(read_to_string(&path).unwrap(), "meanwhile");
            second.commit(&target, &REPLACE).unwrap();
            assert_eq!(read_to_string(&path).unwrap(), "new");

            std::fs::remove_file(&path).unwrap();
            let third = staged(&target, is_named);
            std::fs::create_dir(&path).unwrap();
            assert!(third.commit(&target, &REPLACE).is_err());
            assert_eq!(count(&directory), 1);
        }
    }

    #[test]
    fn a_file_that_can_only_be_written_in_place() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("f");
        std::fs::write(&path, "a longer one").unwrap();
        let before = std::fs::metadata(&path).unwrap().ino();
        let target = target(&directory);
        let busy = Errno::BUSY.into();
        let stat = staged(&target, false).pour(&target, &REPLACE, busy).unwrap();
        assert_eq!((stat.st_ino, read_to_string(&path).unwrap().as_str()), (before, "new"));
        assert_eq!(count(&directory), 1);
    }
}
