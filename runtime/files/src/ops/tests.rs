//! Operations against a real directory, as a batch runs them.

mod batch;
mod hostile;
mod tree;
mod users;
mod write;

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use sandgate_proto::{
    runtime::v1::{
        FileError, FileInfo, FileOp, FileOpResult, FileView, ReadOp, StatOp, WriteOp, file_op::Op,
        file_op_result::Result as Outcome,
    },
    v1::ErrorReason,
};
use tempfile::TempDir;

use crate::{Defaults, Shared, View, run_batch};

const BUDGET: usize = 3 << 20;

/// A directory with a `root` to work in, and things outside of it that must stay as they are.
struct Sandbox {
    directory: TempDir,
    view: View,
    shared: Shared,
}

impl Sandbox {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        let view = view(&directory.path().join("root"), "");
        Self {
            directory,
            view,
            shared: Shared::default(),
        }
    }

    /// A path in the root, as the test sees it.
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join("root").join(path)
    }

    fn batch(&self, ops: Vec<Op>) -> Vec<FileOpResult> {
        let ops = ops.into_iter().map(|op| FileOp { op: Some(op) }).collect();
        run_batch(&self.view, ops, false, BUDGET, &self.shared)
    }

    fn run(&self, op: Op) -> Result<Outcome, FileError> {
        match self.batch(vec![op]).remove(0).result.unwrap() {
            Outcome::Error(error) => Err(error),
            outcome => Ok(outcome),
        }
    }

    fn reason(&self, op: Op) -> ErrorReason {
        self.run(op).unwrap_err().reason()
    }

    fn info(&self, op: Op) -> FileInfo {
        match self.run(op).unwrap() {
            Outcome::Info(info) => info,
            other => panic!("{other:?}"),
        }
    }

    fn content(&self, path: impl AsRef<Path>) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    /// Names in a directory of the root, sorted.
    fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn view(root: &Path, user: &str) -> View {
    let defaults = Defaults {
        user: None,
        cwd: PathBuf::from("/"),
    };
    let proto = FileView {
        root_dir: root.to_str().unwrap().to_owned(),
        user: user.to_owned(),
        ..FileView::default()
    };
    View::open(&proto, &defaults).unwrap()
}

fn write(path: &str, content: &str) -> WriteOp {
    WriteOp {
        path: path.to_owned(),
        content: content.to_owned().into(),
        ..WriteOp::default()
    }
}

fn read(path: &str) -> Op {
    Op::Read(ReadOp {
        path: path.to_owned(),
        ..ReadOp::default()
    })
}

fn stat(path: &str) -> Op {
    Op::Stat(StatOp {
        path: path.to_owned(),
        ..StatOp::default()
    })
}

fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
