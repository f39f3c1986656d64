//! Files on their way in and out: whole, with what belongs to them, at any size in flat memory.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "files_transfer/left.rs"]
mod left;
#[path = "files_transfer/memory.rs"]
mod memory;
#[path = "files_transfer/refused.rs"]
mod refused;
#[path = "files_transfer/resumed.rs"]
mod resumed;
#[path = "files_transfer/trees.rs"]
mod trees;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::Read as _,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _, symlink as link},
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use prost_types::Timestamp;
use rand::{Rng as _, RngCore as _};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, statvfs, utimensat};
use sandgate_proto::{
    runtime::v1::{
        DownloadPath, DownloadRequest, FileType, FileVersion, FileView, TransferFormat, UploadEntry, UploadEntryEnd,
        UploadRequest, WriteChunkRequest, WriteChunkResponse, download_response, file_version::Version,
        upload_request::Message,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime,
    files::{
        Downloaded, chunks, download, download_request, file_at, litter, path_of, rooted, snapshot, try_download,
        upload, upload_start, upload_tar,
    },
    new_id,
    procs::own_memory,
    reason, seeded,
};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, EntryType, Header};
use tokio::{io::AsyncWriteExt as _, process::Command, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;

const LIMIT: Duration = Duration::from_secs(180);
const CHUNK: usize = 64 << 10;
const MAX_GROWTH: u64 = 32 << 20;

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("the test hangs")
}

/// What a tree is made of, as far as a transfer keeps it.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Kept {
    kind: u32,
    mode: u32,
    modified: (i64, i64),
    content: Vec<u8>,
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Kept> {
    let all = snapshot(root).into_iter().filter(|(path, _)| path != root);
    all.map(|(path, seen)| {
        let kept = Kept {
            kind: seen.mode & 0o170_000,
            mode: seen.mode & 0o7777,
            modified: seen.modified,
            content: seen.content,
        };
        (path.strip_prefix(root).unwrap().to_owned(), kept)
    })
    .collect()
}
