//! Time of change and permission bits.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::{
    fs::{self, AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT},
    io::Errno,
};
use sandgate_proto::runtime::v1::{ChmodOp, FileInfo, TouchOp};

use super::{at, errno, permission_bits, timespec};
use crate::{beneath, error::Result, info, path::PathArg, target::Target, view::View};

pub(super) fn touch(view: &View, op: &TouchOp) -> Result<FileInfo> {
    let path = view.path(&op.path, &op.path_raw)?;
    let modified = op.modified.as_ref().map(timespec).transpose()?;
    let file = open_or_create(view, &path, op.make_parents).map_err(at(&path))?;
    set_time(&file, modified).map_err(at(&path))?;
    info::of_file(&path, &file).map_err(at(&path))
}

pub(super) fn chmod(view: &View, op: &ChmodOp) -> Result<FileInfo> {
    let path = view.path(&op.path, &op.path_raw)?;
    let mode = Mode::from_raw_mode(permission_bits(op.mode)?);
    let file = open(view, &path).map_err(at(&path))?;
    // fchmod takes no O_PATH descriptor, and anything else may be refused for reading.
    match fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode) {
        Err(Errno::NOENT | Errno::NOTDIR) => view
            .root()
            .open(path.as_path(), OFlags::RDONLY, Mode::empty())
            .and_then(|file| Ok(fs::fchmod(file, mode)?)),
        other => other.map_err(io::Error::from),
    }
    .map_err(at(&path))?;
    info::of_file(&path, &file).map_err(at(&path))
}

fn open(view: &View, path: &PathArg) -> io::Result<OwnedFd> {
    let file = view.root().open(path.as_path(), OFlags::PATH, Mode::empty())?;
    beneath::refuse_procfs(&file)?;
    Ok(file)
}

fn open_or_create(view: &View, path: &PathArg, make_parents: bool) -> io::Result<OwnedFd> {
    match open(view, path) {
        Err(error) if errno(&error) == Some(Errno::NOENT) => {}
        other => return other,
    }
    let target = Target::follow(view, path, make_parents)?;
    match target.create(OFlags::WRONLY, 0o644) {
        // Someone else was faster.
        Err(error) if errno(&error) == Some(Errno::EXIST) => open(view, path),
        other => other,
    }
}

fn set_time(file: &OwnedFd, modified: Option<Timespec>) -> io::Result<()> {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    // A time of one's own choice is for the owner; "now", for both, is for everyone who may write.
    let times = Timestamps {
        last_access: special(if modified.is_some() { UTIME_OMIT } else { UTIME_NOW }),
        last_modification: modified.unwrap_or_else(|| special(UTIME_NOW)),
    };
    Ok(fs::utimensat(file, "", &times, AtFlags::EMPTY_PATH)?)
}
