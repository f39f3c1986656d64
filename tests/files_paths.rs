//! Nothing outside the root is read, written or revealed: by hostile paths, by symlinks, by races, by archives, or by
//! acting as someone else.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "files_paths/names.rs"]
mod names;
#[path = "files_paths/operations.rs"]
mod operations;
#[path = "files_paths/race.rs"]
mod race;
#[path = "files_paths/transfers.rs"]
mod transfers;
#[path = "files_paths/users.rs"]
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink as link},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sandgate_proto::{
    runtime::v1::{
        DownloadPath, DownloadRequest, ExecState, FileInfo, FileType, FileView, ReadOp, StatOp, TransferFormat,
        UploadEntry, WatchFilesRequest, WriteChunkRequest, WriteMode, WriteOp, exec_exit::Status, file_op::Op,
        file_op_result::Result as Outcome, watch_files_response,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime,
    files::{
        self, Seen, chmod, copy, download, edit, every_op, failed, file_at, glob, grep, hash, list, mkdir, read,
        readlink, relocate, remove, rooted, run_op, run_ops, snapshot, stat, stat_followed, symlink, touch,
        try_download, upload, upload_entry, upload_start, upload_tar, write, write_as,
    },
    new_id, reason, run_request, seeded, shell,
};
use tar::{Builder, EntryType, Header};

/// Occurs in the content of every file outside, and nowhere inside.
const CONTENT: &str = "canary-content";
/// The name of a file outside, which no call names.
const NAME: &str = "canary-name";
/// A size that no file inside has.
const SIZE: usize = 31_337;
const LIMIT: Duration = Duration::from_secs(180);

/// A root, and beside it what must not be touched or seen.
struct Fence {
    runtime: Runtime,
    root: PathBuf,
    outside: PathBuf,
    before: BTreeMap<PathBuf, Seen>,
}

// === impl Fence ===

impl Fence {
    async fn new() -> Self {
        let runtime = Runtime::start().await;
        let (root, outside) = (runtime.workspace().join("root"), runtime.workspace().join("outside"));
        fs::create_dir(&root).unwrap();
        let mut canary = CONTENT.repeat(SIZE / CONTENT.len() + 1);
        canary.truncate(SIZE);
        fs::create_dir_all(outside.join("sub/deep")).unwrap();
        for name in ["secret", "f", "sub/f", "sub/deep/f", NAME] {
            fs::write(outside.join(name), &canary).unwrap();
        }
        let before = snapshot(&outside);
        Self {
            runtime,
            root,
            outside,
            before,
        }
    }

    fn view(&self) -> FileView {
        rooted(&self.root)
    }

    /// Nothing outside has changed.
    fn check(&self, what: impl Debug) {
        assert_eq!(snapshot(&self.outside), self.before, "{what:?} changed what is outside");
        let beside: BTreeSet<_> = self
            .runtime
            .workspace()
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(
            beside,
            BTreeSet::from(["outside".into(), "root".into()]),
            "{what:?} made something beside the root"
        );
    }

    /// Nothing in an answer comes from outside.
    fn check_answer(&self, answer: &impl Debug) {
        let text = format!("{answer:?}");
        assert!(!text.contains(CONTENT) && !text.contains(NAME), "revealed: {text}");
        assert!(!text.contains("size: 31337"), "revealed a size: {text}");
    }

    fn check_outcome(&self, outcome: &Outcome) {
        let inodes: BTreeSet<u64> = self.before.values().map(|seen| seen.inode).collect();
        for info in infos(outcome) {
            assert!(
                !inodes.contains(&info.inode) && info.size != SIZE as u64,
                "revealed {info:?}"
            );
        }
    }

    /// Makes the root anew with every kind of way out of it.
    fn set_up(&self) {
        let _ = fs::remove_dir_all(&self.root);
        let at = |name: &str| self.root.join(name);
        fs::create_dir_all(at("dir/sub")).unwrap();
        fs::write(at("dir/f"), "inside").unwrap();
        fs::write(at("spare"), "inside").unwrap();
        let outside = self.outside.to_str().unwrap();
        for name in ["secret", "absent"] {
            link(format!("{outside}/{name}"), at(&format!("absolute-{name}"))).unwrap();
            link(format!("../outside/{name}"), at(&format!("relative-{name}"))).unwrap();
            link(format!("absolute-{name}"), at(&format!("chain1-{name}"))).unwrap();
            link(format!("chain1-{name}"), at(&format!("chain2-{name}"))).unwrap();
            link(format!("/chain2-{name}"), at(&format!("chain3-{name}"))).unwrap();
            link(format!("/proc/self/root{outside}/{name}"), at(&format!("magic-{name}"))).unwrap();
            link(format!("dir/../../outside/{name}"), at(&format!("dotted-{name}"))).unwrap();
            link(format!("dir/sub/up/outside/{name}"), at(&format!("through-{name}"))).unwrap();
        }
        link(outside, at("dir-absolute")).unwrap();
        link("../outside", at("dir-relative")).unwrap();
        link("../../..", at("dir/sub/up")).unwrap();
        link("/proc/self/root", at("slash")).unwrap();
        link("/proc/self/cwd", at("cwd")).unwrap();
        link(format!("/proc/{}/root", self.runtime.pid()), at("other-root")).unwrap();
        link("/proc/self/fd", at("fds")).unwrap();
        link("/", at("top")).unwrap();
        link("ring", at("ring")).unwrap();
    }

    /// Paths that try to get at `name` outside.
    fn paths(&self, name: &str) -> Vec<String> {
        let outside = self.outside.to_str().unwrap();
        let up = "../".repeat(20);
        let mut paths: Vec<String> = [
            "absolute", "relative", "chain1", "chain2", "chain3", "magic", "dotted", "through",
        ]
        .iter()
        .flat_map(|kind| {
            [
                format!("/{kind}-{name}"),
                format!("{kind}-{name}/"),
                format!("/{kind}-{name}/x"),
            ]
        })
        .collect();
        paths.extend([
            format!("../outside/{name}"),
            format!("/../outside/{name}"),
            format!("{up}{}/{name}", outside.trim_start_matches('/')),
            format!("{outside}/{name}"),
            format!("//{outside}//{name}"),
            format!("dir/../../outside/{name}"),
            format!("dir/sub/../../../outside/{name}"),
            format!("dir/./.././../outside/{name}"),
            format!("dir-absolute/{name}"),
            format!("dir-relative/{name}"),
            format!("dir-relative/./{name}"),
            format!("dir-absolute/../outside/{name}"),
            format!("dir-absolute/sub/../{name}"),
            format!("dir/sub/up/outside/{name}"),
            format!("/proc/self/root{outside}/{name}"),
            format!("slash{outside}/{name}"),
            format!("other-root{outside}/{name}"),
            format!("cwd/outside/{name}"),
            format!("fds/0/../{name}"),
            format!("top{outside}/{name}"),
            format!("top/../outside/{name}"),
            format!("~/{name}"),
            format!("~root/{name}"),
            format!("ring/{name}"),
            format!("file://{outside}/{name}"),
            format!("%2e%2e/outside/{name}"),
            format!("..\\outside\\{name}"),
            format!("outside/{name}\n"),
        ]);
        paths
    }
}

/// What the operation says about paths.
fn infos(outcome: &Outcome) -> Vec<&FileInfo> {
    match outcome {
        Outcome::Info(info) => vec![info],
        Outcome::List(result) => result.entries.iter().collect(),
        Outcome::Glob(result) => result.entries.iter().collect(),
        Outcome::Read(result) => result.info.iter().collect(),
        Outcome::Edit(result) => result.info.iter().collect(),
        _ => vec![],
    }
}

/// A tar of entries as they are given: names unchecked.
fn archive(entries: &[(&str, EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, kind, target, content) in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(if *kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_size(content.len() as u64);
        let fields = header.as_old_mut();
        fields.name[..name.len()].copy_from_slice(name.as_bytes());
        fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, *content).unwrap();
    }
    builder.into_inner().unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("the test hangs")
}
