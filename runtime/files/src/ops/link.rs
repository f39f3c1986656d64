//! Symbolic links, made and read.

use rustix::{
    fs::{self, FileType, Mode, OFlags},
    io::Errno,
};
use sandgate_proto::{
    runtime::v1::{FileInfo, ReadlinkOp, ReadlinkResult, SymlinkOp},
    v1::ErrorReason,
};

use super::{Context, as_path, at};
use crate::{
    atomic, beneath,
    error::{Error, Result},
    info,
    path::{self, MAX_PATH},
    target::Target,
    view::{self, View},
};

pub(super) fn symlink(context: Context<'_>, op: &SymlinkOp) -> Result<FileInfo> {
    let Context { view, shared, .. } = context;
    let path = view.path(&op.path, &op.path_raw)?;
    let text = target_text(op)?;
    if path.names_directory() {
        return Err(at(&path)(Errno::ISDIR));
    }
    let target = Target::exact(view, &path, op.make_parents).map_err(at(&path))?;
    let _held = shared.locks.hold(&[target.key().map_err(at(&path))?]);
    atomic::symlink(&target, as_path(text), op.overwrite, &shared.litter).map_err(at(&path))?;
    info::of_name(&path, target.directory(), target.name()).map_err(at(&path))
}

pub(super) fn readlink(view: &View, op: &ReadlinkOp) -> Result<ReadlinkResult> {
    let path = view.path(&op.path, &op.path_raw)?;
    let link = view
        .root()
        .open_nofollow(path.as_path(), OFlags::PATH, Mode::empty())
        .map_err(at(&path))?;
    if FileType::from_raw_mode(view::stat(&link, &path)?.st_mode) != FileType::Symlink {
        return Err(Error::new(ErrorReason::FileIo, "it is not a symbolic link").at(&path));
    }
    if beneath::belongs_to_process(&link).map_err(at(&path))? {
        return Err(at(&path)(Errno::ACCESS));
    }
    let text = fs::readlinkat(&link, "", Vec::new()).map_err(at(&path))?;
    let (target, target_raw) = path::twins(text.as_bytes());
    Ok(ReadlinkResult { target, target_raw })
}

/// A target is any text; its names are not checked, since it need not lead anywhere.
fn target_text(op: &SymlinkOp) -> Result<&[u8]> {
    let text = path::one_of(&op.target, &op.target_raw)?;
    if text.is_empty() || text.len() > MAX_PATH || text.contains(&0) {
        let message = "a symlink's target is empty, too long, or holds a NUL byte";
        return Err(Error::new(ErrorReason::PathInvalid, message));
    }
    Ok(text)
}
