//! Files under pressure: editors that race, a disk that is full, a runtime that is killed, and files that can't be
//! replaced. Each file is the old one or the new one.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "files_faults/full.rs"]
mod full;
#[path = "files_faults/in_place.rs"]
mod in_place;
#[path = "files_faults/killed.rs"]
mod killed;
#[path = "files_faults/racing.rs"]
mod racing;

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use bytes::Bytes;
use rand::Rng as _;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use sandgate_proto::{
    runtime::v1::{
        EditOp, FileInfo, FileVersion, FileView, ModifiedAndSize, WriteChunkRequest, WriteMode, WriteOp, file_op::Op,
        file_op_result::Result as Outcome, file_version::Version,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime,
    files::{
        batch, copy, edit, failed, file_at, info, litter, read, relocate, rooted, run_op, run_ops, snapshot, stat,
        touch, upload, upload_entry, upload_start, upload_tar, write, write_as,
    },
    reason, seeded,
};
use sha2::{Digest as _, Sha256};
use tonic::Code;

const LIMIT: Duration = Duration::from_secs(120);
const CALLERS: usize = 8;
const ROUNDS: usize = 50;

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("the test hangs")
}

/// Something mounted, for as long as the value lives.
struct Mounted(PathBuf);

// === impl Mounted ===

impl Mounted {
    fn tmpfs(at: PathBuf, options: &str) -> Self {
        fs::create_dir(&at).unwrap();
        succeeds(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", options, "tmpfs"])
                .arg(&at),
        );
        Self(at)
    }

    fn bind(source: &Path, at: PathBuf) -> Self {
        succeeds(Command::new("mount").arg("--bind").arg(source).arg(&at));
        Self(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        succeeds(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

fn succeeds(command: &mut Command) {
    assert!(
        command.status().unwrap().success(),
        "{command:?} failed: this test needs root, to mount"
    );
}
