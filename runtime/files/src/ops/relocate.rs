//! Moving: a rename, or between file systems a copy and a removal.

use std::{
    ffi::{OsStr, OsString},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{self, AtFlags, FileType},
    io::Errno,
};
use sandgate_proto::{
    runtime::v1::{FileInfo, MoveOp},
    v1::ErrorReason,
};

use super::{Context, at, copy::Copier, remove::remove_tree};
use crate::{
    atomic::{self, Shared},
    error::{Error, Result},
    info,
    locks::Key,
    path::PathArg,
    target::Target,
};

pub(super) fn relocate(context: Context<'_>, op: &MoveOp) -> Result<FileInfo> {
    let Context { view, shared, .. } = context;
    let from = view.path(&op.from, &op.from_raw)?;
    let to = view.path(&op.to, &op.to_raw)?;
    let (directory, name) = view.root().parent(from.as_path()).map_err(at(&from))?;
    // Otherwise a missing source would come to light only after directories were made.
    fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(at(&from))?;
    let target = Target::exact(view, &to, op.make_parents).map_err(at(&to))?;
    let relocation = Relocation {
        shared,
        from: &from,
        to: &to,
        directory,
        name,
        target,
        overwrite: op.overwrite,
    };
    match relocation.rename() {
        Ok(()) => {}
        Err(Errno::XDEV) => relocation.copy_and_remove()?,
        Err(Errno::INVAL) => {
            let message = "a directory can't be moved into itself";
            return Err(Error::new(ErrorReason::PathInvalid, message).at(&to));
        }
        Err(errno) => return Err(at(&to)(errno)),
    }
    let target = &relocation.target;
    info::of_name(&to, target.directory(), target.name()).map_err(at(&to))
}

struct Relocation<'a> {
    shared: &'a Shared,
    from: &'a PathArg,
    to: &'a PathArg,
    directory: OwnedFd,
    name: OsString,
    target: Target,
    overwrite: bool,
}

// === impl Relocation ===

impl Relocation<'_> {
    fn rename(&self) -> rustix::io::Result<()> {
        let (directory, name): (&OwnedFd, &OsStr) = (self.target.directory(), self.target.name());
        let keys = [Key::new(&self.directory, &self.name)?, Key::new(directory, name)?];
        let _held = self.shared.locks.hold(&keys);
        if self.overwrite {
            fs::renameat(&self.directory, &self.name, directory, name)
        } else {
            atomic::rename_new(&self.directory, &self.name, directory, name)
        }
    }

    fn copy_and_remove(&self) -> Result<()> {
        let copier = Copier {
            shared: self.shared,
            from: self.from,
            to: self.to,
            overwrite: self.overwrite,
            keep_owner: true,
        };
        let is_tree = copier.kind(&self.directory, &self.name)? == FileType::Directory;
        let target = if is_tree { &self.place_for_tree()? } else { &self.target };
        if let Err(error) = copier.copy(&self.directory, &self.name, target) {
            // Half a copy is of no use, and the whole is still where it was. What was there before is not ours.
            let is_ours = target.existing().is_none() && error.reason != ErrorReason::FileAlreadyExists;
            if is_tree && is_ours {
                let _best = remove_tree(target.directory(), target.name(), self.to.as_path());
            }
            return Err(error);
        }
        remove_tree(&self.directory, &self.name, self.from.as_path())?;
        Ok(())
    }

    /// A rename replaces an empty directory; a copy would be put into it, so it makes room first.
    fn place_for_tree(&self) -> Result<Target> {
        let (directory, name) = (self.target.directory(), self.target.name());
        if self.overwrite && self.target.existing().is_some() {
            fs::unlinkat(directory, name, AtFlags::REMOVEDIR).map_err(at(self.to))?;
        }
        let directory = directory.try_clone().map_err(at(self.to))?;
        Target::new(directory, name.to_owned()).map_err(at(self.to))
    }
}
