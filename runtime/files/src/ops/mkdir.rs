//! Making directories.

use std::{os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use sandgate_proto::runtime::v1::{FileInfo, MkdirOp};

use super::{at, permission_bits};
use crate::{
    beneath,
    error::Result,
    info,
    path::PathArg,
    view::{View, make_directory},
};

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

pub(super) fn mkdir(view: &View, op: &MkdirOp) -> Result<FileInfo> {
    let path = view.path(&op.path, &op.path_raw)?;
    let mode = permission_bits(op.mode.unwrap_or(0o755))?;
    let directory = make(view, &path, op.parents, mode).map_err(at(&path))?;
    info::of_file(&path, &directory).map_err(at(&path))
}

fn make(view: &View, path: &PathArg, parents: bool, mode: u32) -> std::io::Result<OwnedFd> {
    let there = || view.root().open(path.as_path(), DIRECTORY, Mode::empty());
    let Ok((parent, name)) = beneath::split(path.as_path()) else {
        // The root, or a path that ends in `..`: what it names is there, if what comes before is.
        return if parents {
            view.make_or_open(path.as_path())
        } else {
            there().and(Err(Errno::EXIST.into()))
        };
    };
    let parent = if parents {
        view.make_or_open(parent)?
    } else {
        view.root().open(parent, DIRECTORY, Mode::empty())?
    };
    match make_directory(&parent, Path::new(name), mode) {
        Ok(directory) => Ok(directory),
        Err(Errno::EXIST) if parents => there().map_err(|_| Errno::EXIST.into()),
        Err(errno) => Err(errno.into()),
    }
}
