//! Facts about a file, and its hash.

use rustix::fs::{Mode, OFlags};
use sandgate_proto::runtime::v1::{FileInfo, HashOp, HashResult, StatOp};

use super::at;
use crate::{error::Result, info, version, view::View};

pub(super) fn stat(view: &View, op: &StatOp) -> Result<FileInfo> {
    let path = view.path(&op.path, &op.path_raw)?;
    let flags = if op.follow {
        OFlags::PATH
    } else {
        OFlags::PATH | OFlags::NOFOLLOW
    };
    let file = view
        .root()
        .open(path.as_path(), flags, Mode::empty())
        .map_err(at(&path))?;
    info::of_file(&path, &file).map_err(at(&path))
}

pub(super) fn hash(view: &View, op: &HashOp) -> Result<HashResult> {
    let path = view.path(&op.path, &op.path_raw)?;
    let (file, _) = view.open_regular(&path)?;
    let (sha256, size) = version::hash(&file).map_err(at(&path))?;
    Ok(HashResult { sha256, size })
}
