//! The operations of a batch, one module for each or for a few that are alike.
//!
//! Each takes the contract's request and returns the contract's answer. They run on a thread that already acts as the
//! call's user.

mod attributes;
mod copy;
mod edit;
mod link;
mod list;
mod mkdir;
mod read;
mod relocate;
mod remove;
mod stat;
mod write;

use std::{io, path::Path};

use prost_types::Timestamp;
use rustix::{fs::Timespec, io::Errno};
use sandgate_proto::runtime::v1::{FileOp, file_op::Op, file_op_result::Result as Outcome};

use crate::{
    atomic::Shared,
    error::{Error, Result},
    glob, grep,
    info::PERMISSIONS,
    path::PathArg,
    view::View,
};

/// What operations work with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub(crate) view: &'a View,
    pub(crate) shared: &'a Shared,
    /// Bytes left in the answer. Lists stop there; a read that needs more is answered all the same, and then does not fit.
    pub(crate) room: usize,
}

/// Runs one operation.
pub(crate) fn run(context: Context<'_>, op: FileOp) -> Result<Outcome> {
    let Context { view, room, .. } = context;
    Ok(
        match op.op.ok_or_else(|| Error::invalid("an operation says nothing"))? {
            Op::Stat(op) => Outcome::Info(stat::stat(view, &op)?),
            Op::List(op) => Outcome::List(list::list(context, &op)?),
            Op::Read(op) => Outcome::Read(read::read(view, &op)?),
            Op::Write(op) => Outcome::Info(write::write(context, &op)?),
            Op::Edit(op) => Outcome::Edit(edit::edit(context, &op)?),
            Op::Glob(op) => Outcome::Glob(glob::run(view, op, room)?),
            Op::Grep(op) => Outcome::Grep(grep::run(view, op, room)?),
            Op::Mkdir(op) => Outcome::Info(mkdir::mkdir(view, &op)?),
            Op::Move(op) => Outcome::Info(relocate::relocate(context, &op)?),
            Op::Copy(op) => Outcome::Info(copy::copy(context, &op)?),
            Op::Remove(op) => Outcome::Remove(remove::remove(context, &op)?),
            Op::Touch(op) => Outcome::Info(attributes::touch(view, &op)?),
            Op::Chmod(op) => Outcome::Info(attributes::chmod(view, &op)?),
            Op::Symlink(op) => Outcome::Info(link::symlink(context, &op)?),
            Op::Readlink(op) => Outcome::Readlink(link::readlink(view, &op)?),
            Op::Hash(op) => Outcome::Hash(stat::hash(view, &op)?),
        },
    )
}

/// Says which path an error of the kernel is about.
fn at<E: Into<io::Error>>(path: &PathArg) -> impl Fn(E) -> Error + Copy + '_ {
    move |error| Error::io(error, path)
}

fn permission_bits(mode: u32) -> Result<u32> {
    if mode > PERMISSIONS {
        return Err(Error::invalid("permission bits are over 07777"));
    }
    Ok(mode)
}

fn timespec(time: &Timestamp) -> Result<Timespec> {
    if !(0..1_000_000_000).contains(&time.nanos) {
        return Err(Error::invalid("a time has nanoseconds outside of a second"));
    }
    Ok(Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.into(),
    })
}

/// The errno in an error of the standard library.
fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

/// `Path` from a byte string.
fn as_path(bytes: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt as _;

    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests;
