//! Nothing outside the root is read, written or revealed: by hostile paths, by symlinks, by races, by archives, or by
//! acting as someone else.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "files_paths/race.rs"]
mod race;
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
        UploadEntry, UploadStart, WatchFilesRequest, WriteChunkRequest, WriteMode, WriteOp, exec_exit::Status,
        file_op::Op, file_op_result::Result as Outcome, watch_files_response,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime,
    files::{
        self, Seen, chmod, copy, download, edit, every_op, failed, glob, grep, hash, list, mkdir, read, readlink,
        relocate, remove, rooted, run_op, run_ops, snapshot, stat, stat_followed, symlink, touch, try_download, upload,
        upload_entry, upload_tar, write, write_as,
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

/// What the operation says about paths, without what two equal answers may differ in.
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

fn comparable(mut outcome: Outcome) -> String {
    let blur = |info: &mut FileInfo| {
        info.inode = 0;
        info.modified = None;
    };
    match &mut outcome {
        Outcome::Info(info) => blur(info),
        Outcome::List(result) => result.entries.iter_mut().for_each(blur),
        Outcome::Glob(result) => result.entries.iter_mut().for_each(blur),
        Outcome::Read(result) => result.info.iter_mut().for_each(blur),
        Outcome::Edit(result) => result.info.iter_mut().for_each(blur),
        _ => {}
    }
    format!("{outcome:?}").replace("secret", "absent")
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("the test hangs")
}

#[tokio::test]
async fn a_hostile_path_answers_the_same_whether_or_not_there_is_something_outside() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let view = fence.view();
        let pairs: Vec<_> = fence.paths("secret").into_iter().zip(fence.paths("absent")).collect();
        for (present, missing) in &pairs {
            let mut answers: Vec<Vec<String>> = Vec::new();
            for path in [present, missing] {
                let mut outcomes = Vec::new();
                fence.set_up();
                for op in every_op(path, "/spare") {
                    let outcome = run_op(&mut client, &view, op.clone()).await;
                    fence.check_answer(&outcome);
                    fence.check_outcome(&outcome);
                    if matches!(outcome, Outcome::Info(_) | Outcome::Edit(_) | Outcome::Remove(_)) {
                        fence.set_up();
                    }
                    outcomes.push(comparable(outcome));
                }
                fence.check(path);
                answers.push(outcomes);
            }
            assert_eq!(answers[0], answers[1], "{present} tells that it exists");
        }
    })
    .await;
}

#[tokio::test]
async fn the_outside_of_the_root_can_not_be_read_by_any_path() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        for path in fence.paths("secret") {
            let outcomes = run_ops(
                &mut client,
                &fence.view(),
                vec![read(&path), hash(&path), stat_followed(&path)],
            )
            .await;
            for outcome in &outcomes {
                let error = failed(outcome);
                let known = [
                    ErrorReason::FileNotFound,
                    ErrorReason::PathOutsideRoot,
                    ErrorReason::FileNotDirectory,
                    ErrorReason::PathInvalid,
                ];
                assert!(known.contains(&error.reason()), "{path}: {error:?}");
            }
        }
        // What the links say is the sandbox's own business, and what is inside is there.
        let outcomes = run_ops(
            &mut client,
            &fence.view(),
            vec![read("top/dir/f"), readlink("dir-relative")],
        )
        .await;
        assert!(
            matches!(&outcomes[0], Outcome::Read(read) if &read.content[..] == b"inside"),
            "{outcomes:?}"
        );
        assert!(
            matches!(&outcomes[1], Outcome::Readlink(link) if link.target == "../outside"),
            "{outcomes:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn paths_of_a_bad_form_are_refused_by_every_operation() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        let inside = snapshot(&fence.root);
        let (long_path, long_name) = ("x/".repeat(2048), "n".repeat(256));
        for path in ["", "a\0b", "\0", "/dir/f\0", &long_path, &long_name] {
            for op in every_op(path, "/nothing") {
                // To these the empty path is the root; and a pattern is not a path.
                let start = path.is_empty() && matches!(op, Op::Glob(_) | Op::Grep(_));
                if start || matches!(&op, Op::Glob(glob) if glob.path == "/") {
                    continue;
                }
                let outcome = run_op(&mut client, &fence.view(), op.clone()).await;
                let reason = failed(&outcome).reason();
                let missing = matches!(&op, Op::Move(op) if op.from == "/nothing")
                    || matches!(&op, Op::Copy(op) if op.from == "/nothing");
                let expected = reason == ErrorReason::PathInvalid || (missing && reason == ErrorReason::FileNotFound);
                assert!(expected, "{path:?} {op:?}: {outcome:?}");
            }
        }
        // `x/` is a directory or nothing.
        for op in [
            write("new/", ""),
            touch("new/"),
            write("dir/.", ""),
            write("dir/..", ""),
            write("/", ""),
        ] {
            failed(&run_op(&mut client, &fence.view(), op).await);
        }
        let both = Op::Read(ReadOp {
            path: "dir/f".into(),
            path_raw: Bytes::from_static(b"dir/f"),
            ..Default::default()
        });
        assert_eq!(
            failed(&run_op(&mut client, &fence.view(), both).await).reason(),
            ErrorReason::InvalidArgument
        );
        assert_eq!(snapshot(&fence.root), inside);
        fence.check("bad forms");
    })
    .await;
}

#[tokio::test]
async fn names_that_are_not_utf8_are_ordinary_names() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let raw = Bytes::from_static(b"/\xff\xfe");
        let write = WriteOp {
            path_raw: raw.clone(),
            content: Bytes::from_static(b"odd"),
            ..Default::default()
        };
        let stat = StatOp {
            path_raw: raw.clone(),
            ..Default::default()
        };
        let hostile = Bytes::from_static(b"/\xff\xfe/../../outside/secret");
        let out = ReadOp {
            path_raw: hostile,
            ..Default::default()
        };
        let ops = vec![Op::Write(write), Op::Stat(stat), Op::Read(out), list("/", 1)];
        let outcomes = run_ops(&mut client, &fence.view(), ops).await;
        assert_eq!(files::info(outcomes[1].clone()).path_raw, raw);
        failed(&outcomes[2]);
        assert!(
            matches!(&outcomes[3], Outcome::List(list) if list.entries[0].path_raw == raw),
            "{outcomes:?}"
        );
        fence.check("raw names");
    })
    .await;
}

#[tokio::test]
async fn a_tilde_is_a_name() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let ops = vec![mkdir("~", false), write("~/f", "mine"), read("/~/f")];
        let outcomes = run_ops(&mut client, &fence.view(), ops).await;
        assert!(
            matches!(&outcomes[2], Outcome::Read(read) if &read.content[..] == b"mine"),
            "{outcomes:?}"
        );
        assert_eq!(fs::read(fence.root.join("~/f")).unwrap(), b"mine");
    })
    .await;
}

#[tokio::test]
async fn a_root_itself_is_opened_with_care() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        let root = fence.root.to_str().unwrap();
        for (root, expected) in [
            ("relative".to_owned(), ErrorReason::PathInvalid),
            ("/proc/self/root".to_owned(), ErrorReason::PathOutsideRoot),
            ("/proc/self/cwd".to_owned(), ErrorReason::PathOutsideRoot),
            (format!("{root}/slash"), ErrorReason::PathOutsideRoot),
            (format!("{root}/missing"), ErrorReason::FileNotFound),
            (format!("{root}/dir/f"), ErrorReason::FileNotDirectory),
            (format!("{root}/ring"), ErrorReason::PathOutsideRoot),
            (format!("{root}\0"), ErrorReason::PathInvalid),
        ] {
            let view = FileView {
                root_dir: root.clone(),
                ..Default::default()
            };
            let status = client.file_ops(files::batch(&view, vec![stat("/")])).await.unwrap_err();
            assert_eq!(reason(&status), expected, "{root}");
        }
    })
    .await;
}

#[tokio::test]
async fn transfers_and_watches_take_hostile_paths_no_further() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let (present, missing) = (fence.paths("secret"), fence.paths("absent"));
        for (present, missing) in present.iter().zip(&missing) {
            let mut answers = Vec::new();
            for path in [present, missing] {
                fence.set_up();
                let mut answer = Vec::new();
                for format in [TransferFormat::Files, TransferFormat::Tar] {
                    let down = download(&mut client, &fence.view(), &[path], format).await;
                    assert_eq!((down.entries.len(), down.failures.len()), (0, 1), "{path}: {down:?}");
                    fence.check_answer(&down);
                    answer.push(format!("{down:?}"));
                }
                for kind in [FileType::Regular, FileType::Directory, FileType::Symlink] {
                    let target = if kind == FileType::Symlink { "intruder" } else { "" };
                    let entry = UploadEntry {
                        path: path.clone(),
                        r#type: kind.into(),
                        symlink_target: target.into(),
                        ..Default::default()
                    };
                    let content: &[u8] = if kind == FileType::Regular { b"intruder" } else { b"" };
                    let start = UploadStart {
                        view: Some(fence.view()),
                        ..Default::default()
                    };
                    let up = upload(&mut client, start, upload_entry(entry, content)).await.unwrap();
                    if up.entries > 0 {
                        fence.set_up();
                    }
                    answer.push(format!("{up:?}"));
                }
                let tar = archive(&[("f", EntryType::Regular, "", b"intruder")]);
                let up = upload_tar(&mut client, &fence.view(), path, &tar).await;
                answer.push(format!("{:?}", up.map_err(|status| reason(&status))));
                fence.set_up();
                let chunk = WriteChunkRequest {
                    upload_id: new_id("chunk"),
                    view: Some(fence.view()),
                    entry: Some(UploadEntry {
                        path: path.clone(),
                        ..Default::default()
                    }),
                    data: Bytes::from_static(b"intruder"),
                    finish: true,
                    ..Default::default()
                };
                let chunk = client.write_chunk(chunk).await;
                answer.push(format!(
                    "{:?}",
                    chunk
                        .map(|ok| ok.into_inner().accepted)
                        .map_err(|status| reason(&status))
                ));
                let watch = WatchFilesRequest {
                    view: Some(fence.view()),
                    path: path.clone(),
                    ..Default::default()
                };
                let watch = client.watch_files(watch).await.map(drop);
                answer.push(format!("{:?}", watch.map_err(|status| reason(&status))));
                fence.check(path);
                answers.push(
                    answer
                        .iter()
                        .map(|text| text.replace("secret", "absent"))
                        .collect::<Vec<_>>(),
                );
            }
            assert_eq!(answers[0], answers[1], "{present} tells that it exists");
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_tells_nothing_of_what_links_lead_to() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        let request = WatchFilesRequest {
            view: Some(fence.view()),
            path: "/".into(),
            recursive: true,
            ..Default::default()
        };
        let mut events = client.watch_files(request).await.unwrap().into_inner();
        events.message().await.unwrap().unwrap();
        fs::write(fence.outside.join("made-outside"), "").unwrap();
        fs::remove_file(fence.outside.join("made-outside")).unwrap();
        fs::write(fence.root.join("last"), "").unwrap();
        loop {
            let message = events.message().await.unwrap().unwrap().message.unwrap();
            let watch_files_response::Message::Event(event) = message else {
                continue;
            };
            assert!(event.path == "/last", "{event:?}");
            break;
        }
    })
    .await;
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

#[tokio::test]
async fn archives_unpack_beneath_their_directory_only() {
    within(async {
        let fence = Fence::new().await;
        let mut client = fence.runtime.connect().await;
        let outside = fence.outside.to_str().unwrap().to_owned();
        let (file, sym, hard, dir) = (
            EntryType::Regular,
            EntryType::Symlink,
            EntryType::Link,
            EntryType::Directory,
        );
        let absolute = format!("{outside}/secret");
        let absolute_file = format!("{outside}/f");
        let entries: Vec<(&str, EntryType, &str, &[u8])> = vec![
            ("../outside/f", file, "", b"intruder"),
            ("a/../../outside/f", file, "", b"intruder"),
            ("..", dir, "", b""),
            ("../new", dir, "", b""),
            // An absolute name is taken beneath the directory.
            (&absolute_file, file, "", b"taken inside"),
            ("up", sym, "../../outside", b""),
            ("up/f", file, "", b"intruder"),
            ("up/new/f", file, "", b"intruder"),
            ("up/new", dir, "", b""),
            ("up/link", sym, "x", b""),
            ("abs", sym, &outside, b""),
            ("abs/f", file, "", b"intruder"),
            ("abs/sub", dir, "", b""),
            ("leaf", sym, &absolute, b""),
            ("leaf", file, "", b"replaced the link"),
            ("hard1", hard, "../../outside/secret", b""),
            ("hard2", hard, &absolute, b""),
            ("hard3", hard, "up/secret", b""),
            ("hard4", hard, "abs/secret", b""),
            ("proc", sym, "/proc/self/root", b""),
            ("proc/f", file, "", b"intruder"),
            ("dev", EntryType::Char, "", b""),
            ("good", file, "", b"good"),
        ];
        fs::create_dir(fence.root.join("in")).unwrap();
        let answer = upload_tar(&mut client, &fence.view(), "in", &archive(&entries))
            .await
            .unwrap();
        fence.check("an archive");
        fence.check_answer(&answer);
        let bad: Vec<_> = answer
            .failures
            .iter()
            .map(|failure| failure.error.clone().unwrap().path)
            .collect();
        for name in [
            "/in/up/f",
            "/in/up/new/f",
            "/in/abs/f",
            "/in/hard1",
            "/in/hard2",
            "/in/hard3",
            "/in/hard4",
            "/in/proc/f",
            "/in/dev",
        ] {
            assert!(bad.iter().any(|path| path == name), "{name} is missing in {bad:?}");
        }
        let at = |name: &str| fence.root.join("in").join(name);
        assert_eq!(
            fs::read(at(absolute_file.trim_start_matches('/'))).unwrap(),
            b"taken inside"
        );
        assert_eq!(fs::read(at("good")).unwrap(), b"good");
        assert_eq!(fs::read(at("leaf")).unwrap(), b"replaced the link");
        assert!(at("leaf").symlink_metadata().unwrap().is_file());
        for name in ["hard1", "hard2", "hard3", "hard4"] {
            assert!(at(name).symlink_metadata().is_err(), "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_download_of_a_tree_keeps_hostile_links_as_links() {
    within(async {
        let fence = Fence::new().await;
        fence.set_up();
        let mut client = fence.runtime.connect().await;
        for format in [TransferFormat::Files, TransferFormat::Tar] {
            let down = download(&mut client, &fence.view(), &["/"], format).await;
            assert_eq!(down.summary.unwrap().failures, 0, "{down:?}");
            let content: Vec<u8> = down
                .entries
                .iter()
                .flat_map(|(_, content, _)| content.clone())
                .chain(down.tar.clone())
                .collect();
            let text = String::from_utf8_lossy(&content);
            assert!(!text.contains(CONTENT) && !text.contains(NAME));
            for (entry, content, _) in &down.entries {
                let info = entry.info.as_ref().unwrap();
                assert!(content.is_empty() || &content[..] == b"inside", "{info:?}");
                assert!(
                    info.path.starts_with("/dir") || info.path.matches('/').count() == 1,
                    "{info:?}"
                );
            }
            let links = match format {
                TransferFormat::Files => down
                    .entries
                    .iter()
                    .filter(|(entry, ..)| entry.info.as_ref().unwrap().r#type() == FileType::Symlink)
                    .count(),
                _ => {
                    let mut archive = tar::Archive::new(&down.tar[..]);
                    archive
                        .entries()
                        .unwrap()
                        .filter(|entry| entry.as_ref().unwrap().header().entry_type().is_symlink())
                        .count()
                }
            };
            assert_eq!(links, 25);
        }
    })
    .await;
}
