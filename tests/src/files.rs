//! File calls, shortly written.

mod transfer;

pub use self::transfer::{
    Downloaded, chunks, download, download_request, file_at, try_download, upload, upload_entry, upload_start,
    upload_tar,
};

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use sandgate_proto::runtime::v1::{
    ChmodOp, CopyOp, EditOp, FileError, FileInfo, FileOp, FileOpsRequest, FileView, GlobOp, GrepOp, HashOp, ListOp,
    MkdirOp, MoveOp, ReadOp, ReadlinkOp, RemoveOp, StatOp, SymlinkOp, TouchOp, WriteMode, WriteOp, file_op::Op,
    file_op_result::Result as Outcome,
};

use crate::runtime::Client;

/// What a file was, to be compared with what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Permission bits and type.
    pub mode: u32,
    /// Its time of change.
    pub modified: (i64, i64),
    /// Its number.
    pub inode: u64,
    /// Content of a file, target of a symlink.
    pub content: Vec<u8>,
}

/// Everything beneath a directory, and the directory itself.
#[must_use]
pub fn snapshot(directory: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_dir() {
            todo.extend(path.read_dir().unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if metadata.is_symlink() {
            path.read_link().unwrap().into_os_string().as_bytes().to_vec()
        } else {
            std::fs::read(&path).unwrap()
        };
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        let seen = Seen {
            mode: metadata.permissions().mode(),
            modified,
            inode: metadata.ino(),
            content,
        };
        all.insert(path, seen);
    }
    all
}

/// Names of temporaries that the runtime left beneath a directory.
#[must_use]
pub fn litter(directory: &Path) -> Vec<PathBuf> {
    let ours = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.as_bytes().starts_with(b".sandgate-"))
    };
    snapshot(directory).into_keys().filter(ours).collect()
}

/// The view whose root is that directory.
#[must_use]
pub fn rooted(directory: &Path) -> FileView {
    FileView {
        root_dir: directory.to_str().unwrap().to_owned(),
        ..Default::default()
    }
}

/// A batch that is not remembered.
#[must_use]
pub fn batch(view: &FileView, ops: Vec<Op>) -> FileOpsRequest {
    let ops = ops.into_iter().map(|op| FileOp { op: Some(op) }).collect();
    FileOpsRequest {
        view: Some(view.clone()),
        ops,
        ..Default::default()
    }
}

/// Sends a batch, which must be answered as a whole.
pub async fn send(client: &mut Client, request: FileOpsRequest) -> Vec<Outcome> {
    let answer = client.file_ops(request).await.unwrap().into_inner();
    answer
        .results
        .into_iter()
        .map(|result| result.result.expect("an outcome"))
        .collect()
}

/// Runs operations.
pub async fn run_ops(client: &mut Client, view: &FileView, ops: Vec<Op>) -> Vec<Outcome> {
    let count = ops.len();
    let outcomes = send(client, batch(view, ops)).await;
    assert_eq!(outcomes.len(), count, "each operation is answered");
    outcomes
}

/// Runs one operation.
pub async fn run_op(client: &mut Client, view: &FileView, op: Op) -> Outcome {
    run_ops(client, view, vec![op]).await.pop().unwrap()
}

/// The error that an operation came to.
pub fn failed(outcome: &Outcome) -> &FileError {
    match outcome {
        Outcome::Error(error) => error,
        other => panic!("no error: {other:?}"),
    }
}

/// The path as it is now.
#[must_use]
pub fn info(outcome: Outcome) -> FileInfo {
    match outcome {
        Outcome::Info(info) => info,
        other => panic!("no info: {other:?}"),
    }
}

/// A path of an answer, whichever field it is in.
#[must_use]
pub fn path_of(text: &str, raw: &[u8]) -> PathBuf {
    assert!(text.is_empty() || raw.is_empty(), "one of the twins is set");
    assert!(
        raw.is_empty() || std::str::from_utf8(raw).is_err(),
        "the raw twin is for what is not UTF-8"
    );
    let bytes = if raw.is_empty() { text.as_bytes() } else { raw };
    PathBuf::from(OsString::from(OsStr::from_bytes(bytes)))
}

/// Facts.
pub fn stat(path: impl Into<String>) -> Op {
    Op::Stat(StatOp {
        path: path.into(),
        ..Default::default()
    })
}

/// Facts of what a symlink leads to.
pub fn stat_followed(path: impl Into<String>) -> Op {
    Op::Stat(StatOp {
        path: path.into(),
        follow: true,
        ..Default::default()
    })
}

/// Entries.
pub fn list(path: impl Into<String>, depth: u32) -> Op {
    Op::List(ListOp {
        path: path.into(),
        depth,
        ..Default::default()
    })
}

/// Content.
pub fn read(path: impl Into<String>) -> Op {
    Op::Read(ReadOp {
        path: path.into(),
        ..Default::default()
    })
}

/// Makes or replaces a file.
pub fn write(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Op {
    write_as(path, content, WriteMode::Overwrite)
}

/// Writes a file in some way.
pub fn write_as(path: impl Into<String>, content: impl Into<Vec<u8>>, mode: WriteMode) -> Op {
    let content = content.into().into();
    Op::Write(WriteOp {
        path: path.into(),
        content,
        write_mode: mode.into(),
        ..Default::default()
    })
}

/// Replaces text.
pub fn edit(path: impl Into<String>, old: &str, new: &str) -> Op {
    let (old_text, new_text) = (old.to_owned().into(), new.to_owned().into());
    Op::Edit(EditOp {
        path: path.into(),
        old_text,
        new_text,
        ..Default::default()
    })
}

/// Finds paths.
pub fn glob(path: impl Into<String>, pattern: &str) -> Op {
    let pattern = pattern.to_owned();
    Op::Glob(GlobOp {
        path: path.into(),
        pattern,
        include_directories: true,
        include_hidden: true,
        ..Default::default()
    })
}

/// Finds text.
pub fn grep(path: impl Into<String>, pattern: &str) -> Op {
    Op::Grep(GrepOp {
        path: path.into(),
        pattern: pattern.to_owned(),
        ..Default::default()
    })
}

/// Makes a directory.
pub fn mkdir(path: impl Into<String>, parents: bool) -> Op {
    Op::Mkdir(MkdirOp {
        path: path.into(),
        parents,
        ..Default::default()
    })
}

/// Renames, replacing.
pub fn relocate(from: impl Into<String>, to: impl Into<String>) -> Op {
    Op::Move(MoveOp {
        from: from.into(),
        to: to.into(),
        overwrite: true,
        ..Default::default()
    })
}

/// Copies a file or a tree, replacing.
pub fn copy(from: impl Into<String>, to: impl Into<String>) -> Op {
    Op::Copy(CopyOp {
        from: from.into(),
        to: to.into(),
        overwrite: true,
        recursive: true,
        ..Default::default()
    })
}

/// Removes a file or a tree.
pub fn remove(path: impl Into<String>, recursive: bool) -> Op {
    Op::Remove(RemoveOp {
        path: path.into(),
        recursive,
        ..Default::default()
    })
}

/// Makes an empty file or sets its time.
pub fn touch(path: impl Into<String>) -> Op {
    Op::Touch(TouchOp {
        path: path.into(),
        ..Default::default()
    })
}

/// Sets permission bits.
pub fn chmod(path: impl Into<String>, mode: u32) -> Op {
    Op::Chmod(ChmodOp {
        path: path.into(),
        mode,
        ..Default::default()
    })
}

/// Makes a symlink.
pub fn symlink(path: impl Into<String>, target: &str) -> Op {
    Op::Symlink(SymlinkOp {
        path: path.into(),
        target: target.to_owned(),
        overwrite: true,
        ..Default::default()
    })
}

/// Reads a symlink.
pub fn readlink(path: impl Into<String>) -> Op {
    Op::Readlink(ReadlinkOp {
        path: path.into(),
        ..Default::default()
    })
}

/// Hashes a file.
pub fn hash(path: impl Into<String>) -> Op {
    Op::Hash(HashOp {
        path: path.into(),
        ..Default::default()
    })
}

/// Every operation, in each of its ways, on one path. `spare` is a path that may be used as the other end.
#[must_use]
pub fn every_op(path: &str, spare: &str) -> Vec<Op> {
    let made = |mut op: Op| {
        match &mut op {
            Op::Write(op) => op.make_parents = true,
            Op::Touch(op) => op.make_parents = true,
            Op::Symlink(op) => op.make_parents = true,
            Op::Move(op) => op.make_parents = true,
            Op::Copy(op) => op.make_parents = true,
            _ => {}
        }
        op
    };
    vec![
        stat(path),
        stat_followed(path),
        list(path, 1),
        list(path, 5),
        read(path),
        write(path, "intruder"),
        made(write(path, "intruder")),
        write_as(path, "intruder", WriteMode::CreateOnly),
        write_as(path, "intruder", WriteMode::Append),
        edit(path, "c", "intruder"),
        glob(path, "**"),
        glob("/", &format!("{}*", path.trim_start_matches('/'))),
        grep(path, "."),
        mkdir(path, false),
        mkdir(path, true),
        relocate(path, spare),
        relocate(spare, path),
        made(relocate(spare, path)),
        copy(path, spare),
        copy(spare, path),
        made(copy(spare, path)),
        remove(path, false),
        remove(path, true),
        touch(path),
        made(touch(path)),
        chmod(path, 0o777),
        symlink(path, "intruder"),
        made(symlink(path, "intruder")),
        readlink(path),
        hash(path),
    ]
}
