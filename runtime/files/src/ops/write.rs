//! Making, replacing and extending files.

use std::{
    fs::File,
    io::{self, Write as _},
};

use rustix::{
    fs::{self, Mode, OFlags, Stat},
    io::Errno,
};
use sandgate_proto::runtime::v1::{FileInfo, FileVersion, WriteMode, WriteOp};

use super::{Context, at, errno, permission_bits};
use crate::{
    atomic::{Finish, Staged},
    error::{Error, Result},
    info,
    path::PathArg,
    target::Target,
    version,
    view::must_be_regular,
};

pub(super) fn write(context: Context<'_>, op: &WriteOp) -> Result<FileInfo> {
    let Context { view, shared, .. } = context;
    let path = view.path(&op.path, &op.path_raw)?;
    let how = WriteMode::try_from(op.write_mode).map_err(|_| Error::invalid("the write mode is not known"))?;
    let mode = op.mode.map(permission_bits).transpose()?;
    let create_only = how == WriteMode::CreateOnly;
    let target = if create_only && !path.names_directory() {
        // A symlink is something that exists, wherever it leads.
        Target::exact(view, &path, op.make_parents)
    } else {
        Target::follow(view, &path, op.make_parents)
    };
    let mut target = target.map_err(at(&path))?;
    let _held = shared.locks.hold(&[target.key().map_err(at(&path))?]);
    target.look().map_err(at(&path))?;
    if create_only && target.existing().is_some() {
        return Err(at(&path)(Errno::EXIST));
    }
    check_version(&target, op.expected.as_ref(), &path)?;
    let stat = if how == WriteMode::Append {
        append(&target, &op.content, mode).map_err(at(&path))?
    } else {
        let finish = Finish {
            replace: !create_only,
            mode,
            ..Finish::default()
        };
        let mut staged = Staged::begin(&target, &shared.litter).map_err(at(&path))?;
        staged.file().write_all(&op.content).map_err(at(&path))?;
        staged.commit(&target, &finish).map_err(at(&path))?
    };
    Ok(info::of_stat(&path, &stat))
}

fn check_version(target: &Target, expected: Option<&FileVersion>, path: &PathArg) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    let stat = target.existing().ok_or_else(|| version::mismatch(path))?;
    must_be_regular(stat, path)?;
    let file = target.open(OFlags::RDONLY).map_err(at(path))?;
    version::check(expected, &file, path)
}

fn append(target: &Target, content: &[u8], mode: Option<u32>) -> io::Result<Stat> {
    let flags = OFlags::WRONLY | OFlags::APPEND;
    let created = match target.existing() {
        Some(_) => Err(Errno::EXIST.into()),
        None => target.create(flags, mode.unwrap_or(0o644)),
    };
    let file = match created {
        Err(error) if errno(&error) == Some(Errno::EXIST) => {
            let file = target.open(flags)?;
            if let Some(mode) = mode {
                fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            }
            file
        }
        other => other?,
    };
    let mut file = File::from(file);
    file.write_all(content)?;
    Ok(fs::fstat(&file)?)
}
