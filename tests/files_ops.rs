//! What each file operation answers, batches, and watching, over the wire.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "files_ops/answers.rs"]
mod answers;
#[path = "files_ops/batches.rs"]
mod batches;
#[path = "files_ops/contents.rs"]
mod contents;
#[path = "files_ops/searches.rs"]
mod searches;
#[path = "files_ops/watch.rs"]
mod watch;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use prost_types::Timestamp;
use sandgate_proto::{
    runtime::v1::{
        ByteWindow, EditOp, FileEvent, FileOpsResponse, FileType, FileVersion, FileView, GrepOp, LineWindow, ListOp,
        ReadOp, ReadResult, TouchOp, WatchFilesRequest, WatchFilesResponse, WriteMode, WriteOp, file_event::Kind,
        file_op::Op, file_op_not_run::Why, file_op_result::Result as Outcome, file_version::Version, read_op::Window,
        watch_files_response,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime,
    files::{
        batch, chmod, copy, edit, failed, glob, grep, hash, info, list, mkdir, path_of, read, readlink, relocate,
        remove, rooted, run_op, run_ops, send, stat, stat_followed, symlink, touch, write, write_as,
    },
    reason,
};
use sha2::{Digest as _, Sha256};
use tonic::Streaming;

const LIMIT: Duration = Duration::from_secs(120);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("the test hangs")
}

fn content(outcome: &Outcome) -> &ReadResult {
    match outcome {
        Outcome::Read(read) => read,
        other => panic!("no content: {other:?}"),
    }
}

fn shown(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
