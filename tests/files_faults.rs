//! Files under pressure: editors that race, a disk that is full, a runtime that is killed, and files that can't be
//! replaced. Each file is the old one or the new one.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

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
        EditOp, FileInfo, FileVersion, FileView, ModifiedAndSize, UploadEntry, UploadStart, WriteChunkRequest,
        WriteMode, WriteOp, file_op::Op, file_op_result::Result as Outcome, file_version::Version,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime,
    files::{
        batch, copy, edit, failed, info, litter, read, relocate, rooted, run_op, run_ops, snapshot, stat, touch,
        upload, upload_entry, upload_tar, write, write_as,
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

/// How a caller says which version it expects.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Content,
    ModifiedAndSize,
}

// === impl Expect ===

impl Expect {
    fn version(self, info: &FileInfo, content: &[u8]) -> FileVersion {
        let version = match self {
            Self::Content => Version::Sha256(Bytes::copy_from_slice(&Sha256::digest(content))),
            Self::ModifiedAndSize => Version::ModifiedAndSize(ModifiedAndSize {
                modified: info.modified,
                size: info.size,
            }),
        };
        FileVersion { version: Some(version) }
    }
}

async fn one_wins(edits: bool, expect: Expect) {
    let runtime = Runtime::start().await;
    let view = rooted(&runtime.workspace());
    let path = runtime.workspace().join("f");
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        callers.push(runtime.connect().await);
    }
    let mut content = "version 00000 by nobody".to_owned();
    let mut now = info(run_op(&mut callers[0], &view, write("/f", content.clone())).await);
    for round in 0..ROUNDS {
        let expected = expect.version(&now, content.as_bytes());
        let tasks: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let new = format!("version {round:05} by {caller} {}", "x".repeat(round));
                let op = if edits {
                    let (old_text, new_text) = (content.clone().into(), new.clone().into());
                    Op::Edit(EditOp {
                        path: "/f".into(),
                        old_text,
                        new_text,
                        expected: Some(expected.clone()),
                        ..Default::default()
                    })
                } else {
                    let content = new.clone().into();
                    Op::Write(WriteOp {
                        path: "/f".into(),
                        content,
                        expected: Some(expected.clone()),
                        ..Default::default()
                    })
                };
                let (mut client, view) = (callers[caller].clone(), view.clone());
                tokio::spawn(async move { (new, run_op(&mut client, &view, op).await) })
            })
            .collect();
        let mut winners = Vec::new();
        for task in tasks {
            let (new, outcome) = task.await.unwrap();
            match outcome {
                Outcome::Info(info) => winners.push((new, info)),
                Outcome::Edit(edit) => winners.push((new, edit.info.unwrap())),
                other => assert_eq!(failed(&other).reason(), ErrorReason::FileVersionMismatch, "{other:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}, {expect:?}: {winners:?}");
        (content, now) = winners.pop().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    assert_eq!(litter(&runtime.workspace()), Vec::<PathBuf>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_writers_that_expect_the_same_version_one_wins() {
    within(one_wins(false, Expect::Content)).await;
    within(one_wins(false, Expect::ModifiedAndSize)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_editors_that_expect_the_same_version_one_wins() {
    within(one_wins(true, Expect::Content)).await;
    within(one_wins(true, Expect::ModifiedAndSize)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_who_create_a_file_one_wins() {
    within(async {
        let runtime = Runtime::start().await;
        let client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        for round in 0..ROUNDS {
            let tasks: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let op = write_as(format!("/{round}"), caller.to_string(), WriteMode::CreateOnly);
                    let (mut client, view) = (client.clone(), view.clone());
                    tokio::spawn(async move { run_op(&mut client, &view, op).await })
                })
                .collect();
            let mut winner = None;
            for (caller, task) in tasks.into_iter().enumerate() {
                match task.await.unwrap() {
                    Outcome::Info(_) => assert!(winner.replace(caller).is_none(), "two winners"),
                    other => assert_eq!(failed(&other).reason(), ErrorReason::FileAlreadyExists),
                }
            }
            let content = fs::read_to_string(runtime.workspace().join(round.to_string())).unwrap();
            assert_eq!(Some(content), winner.map(|caller| caller.to_string()));
        }
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_loses_nothing() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let disk = Mounted::tmpfs(runtime.workspace().join("disk"), "size=4m");
        let view = rooted(&disk.0);
        let old = "old ".repeat(400_000);
        run_op(&mut client, &view, write("/f", old.clone())).await;
        run_op(&mut client, &view, write("/small", "small")).await;
        let before = snapshot(&disk.0);
        let big = vec![b'n'; 3 << 20];
        let grow = Op::Edit(EditOp {
            path: "/f".into(),
            old_text: Bytes::from_static(b"old"),
            new_text: Bytes::from_static(b"twice as much"),
            replace_all: true,
            ..Default::default()
        });
        let outside = runtime.workspace().join("big");
        fs::write(&outside, &big).unwrap();
        for op in [
            write("/f", big.clone()),
            write("/new", big.clone()),
            write_as("/new", big.clone(), WriteMode::CreateOnly),
            grow,
        ] {
            let name = format!("{op:?}").chars().take(60).collect::<String>();
            let outcome = run_op(&mut client, &view, op).await;
            assert_eq!(failed(&outcome).reason(), ErrorReason::DiskFull, "{name}: {outcome:?}");
            assert_eq!(snapshot(&disk.0), before, "{name}");
        }
        let sandbox = FileView::default();
        for op in [
            copy("big", "disk/f"),
            copy("big", "disk/new"),
            relocate("big", "disk/new"),
        ] {
            let outcome = run_op(&mut client, &sandbox, op.clone()).await;
            assert_eq!(failed(&outcome).reason(), ErrorReason::DiskFull, "{op:?}: {outcome:?}");
            assert_eq!(snapshot(&disk.0), before, "{op:?}");
            assert!(outside.exists());
        }

        let start = || UploadStart {
            view: Some(view.clone()),
            ..Default::default()
        };
        let entry = |path: &str| UploadEntry {
            path: path.into(),
            ..Default::default()
        };
        let mut messages = upload_entry(entry("/f"), &big);
        messages.extend(upload_entry(entry("/small2"), b"fits"));
        let answer = upload(&mut client, start(), messages).await.unwrap();
        assert_eq!((answer.entries, answer.failures_total), (1, 1), "{answer:?}");
        let error = answer.failures[0].error.clone().unwrap();
        assert_eq!((error.reason(), error.path.as_str()), (ErrorReason::DiskFull, "/f"));
        assert_eq!(fs::read(disk.0.join("small2")).unwrap(), b"fits");
        fs::remove_file(disk.0.join("small2")).unwrap();

        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in [("f", &big[..]), ("small2", b"fits")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, content).unwrap();
        }
        let answer = upload_tar(&mut client, &view, "/", &builder.into_inner().unwrap())
            .await
            .unwrap();
        assert_eq!((answer.entries, answer.failures_total), (1, 1), "{answer:?}");
        assert_eq!(
            answer.failures[0].error.clone().unwrap().reason(),
            ErrorReason::DiskFull
        );
        fs::remove_file(disk.0.join("small2")).unwrap();

        // A chunk that found no room can be sent again when there is some.
        fs::write(disk.0.join("ballast"), vec![0; 1 << 20]).unwrap();
        let chunk = |offset: usize, finish| WriteChunkRequest {
            upload_id: "full".into(),
            view: Some(view.clone()),
            entry: Some(entry("/f")),
            offset: offset as u64,
            data: Bytes::copy_from_slice(&big[offset..offset + (1 << 20)]),
            finish,
            sha256: if finish {
                Bytes::copy_from_slice(&Sha256::digest(&big[..2 << 20]))
            } else {
                Bytes::new()
            },
            ..Default::default()
        };
        assert_eq!(
            client.write_chunk(chunk(0, false)).await.unwrap().into_inner().accepted,
            1 << 20
        );
        let full = client.write_chunk(chunk(1 << 20, true)).await.unwrap_err();
        assert_eq!(
            (full.code(), reason(&full)),
            (Code::ResourceExhausted, ErrorReason::DiskFull)
        );
        assert_eq!(fs::read(disk.0.join("f")).unwrap(), old.as_bytes());
        fs::remove_file(disk.0.join("ballast")).unwrap();
        assert_eq!(
            client
                .write_chunk(chunk(1 << 20, true))
                .await
                .unwrap()
                .into_inner()
                .accepted,
            2 << 20
        );
        assert!(fs::read(disk.0.join("f")).unwrap() == big[..2 << 20]);

        // Room is found again, and nothing was left behind.
        run_op(&mut client, &view, write("/f", old.clone())).await;
        let after: Vec<_> = snapshot(&disk.0)
            .into_iter()
            .map(|(path, seen)| (path, seen.content))
            .collect();
        let expected: Vec<_> = before.into_iter().map(|(path, seen)| (path, seen.content)).collect();
        assert!(after == expected, "something was left behind");
        run_op(&mut client, &view, write("/again", vec![0; 2 << 20])).await;
        assert_eq!(fs::metadata(disk.0.join("again")).unwrap().len(), 2 << 20);
    })
    .await;
}

#[tokio::test]
async fn no_inodes_left_is_a_full_disk_too() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let disk = Mounted::tmpfs(runtime.workspace().join("disk"), "nr_inodes=8");
        let view = rooted(&disk.0);
        let ops = (0..20).map(|n| touch(format!("/{n}"))).collect();
        let outcomes = run_ops(&mut client, &view, ops).await;
        assert_eq!(failed(outcomes.last().unwrap()).reason(), ErrorReason::DiskFull);
        assert_eq!(litter(&disk.0), Vec::<PathBuf>::new());
    })
    .await;
}

const FILES: usize = 50;
const PER_BATCH: usize = 10;

/// The whole of a file, of which no part is like another's.
fn generation(file: usize, generation: usize) -> String {
    format!("file {file} generation {generation}\n").repeat(400)
}

fn is_whole(file: usize, content: &str) -> bool {
    let number = content
        .lines()
        .next()
        .and_then(|line| line.rsplit(' ').next()?.parse().ok());
    number.is_some_and(|number| content == generation(file, number))
}

async fn overwrite(mut client: Client, view: FileView, worker: usize, writes: usize) -> usize {
    let mut answered = 0;
    for number in 0..writes / PER_BATCH {
        let ops = (0..PER_BATCH)
            .map(|n| {
                let file = (number * PER_BATCH + n) % FILES;
                write(format!("/{file}"), generation(file, 1 + worker * writes + number))
            })
            .collect();
        if client.file_ops(batch(&view, ops)).await.is_err() {
            break;
        }
        answered += PER_BATCH;
    }
    answered
}

/// On file systems with and without unnamed temporary files.
async fn survives_kills(mut runtime: Runtime, directory: &Path, rounds: usize) {
    let mut random = seeded();
    let view = rooted(directory);
    let mut client = runtime.connect().await;
    let ops = (0..FILES)
        .map(|file| write(format!("/{file}"), generation(file, 0)))
        .collect();
    run_ops(&mut client, &view, ops).await;
    let mut cut = 0;
    for round in 0..rounds {
        let workers: Vec<_> = {
            let mut workers = Vec::new();
            for worker in 0..2 {
                let client = runtime.connect().await;
                workers.push(tokio::spawn(overwrite(client, view.clone(), worker, 500)));
            }
            workers
        };
        tokio::time::sleep(Duration::from_micros(random.random_range(0..60_000))).await;
        runtime.kill();
        let mut answered = 0;
        for worker in workers {
            answered += worker.await.unwrap();
        }
        cut += usize::from(answered > 0 && answered < 1_000);
        for file in 0..FILES {
            let content = fs::read_to_string(directory.join(file.to_string())).unwrap();
            assert!(
                is_whole(file, &content),
                "round {round}: file {file} is torn: {} bytes",
                content.len()
            );
        }
        runtime.restart().await;
        assert_eq!(litter(directory), Vec::<PathBuf>::new(), "round {round}");
        assert_eq!(fs::read_dir(directory).unwrap().count(), FILES);
    }
    println!("{cut} of {rounds} kills came in the midst of the writes");
    assert!(cut > 0, "no kill came in the midst of the writes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_midst_of_a_thousand_writes_tears_no_file() {
    within(async {
        let runtime = Runtime::start().await;
        let directory = runtime.workspace().join("d");
        fs::create_dir(&directory).unwrap();
        survives_kills(runtime, &directory, 25).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_in_the_midst_of_uploads_leaves_the_old_files() {
    within(async {
        let mut runtime = Runtime::start().await;
        let mut random = seeded();
        let directory = runtime.workspace().join("d");
        fs::create_dir(&directory).unwrap();
        let view = rooted(&directory);
        for _ in 0..10 {
            for file in 0..FILES {
                fs::write(directory.join(file.to_string()), generation(file, 0)).unwrap();
            }
            let mut client = runtime.connect().await;
            let view = view.clone();
            let sending = tokio::spawn(async move {
                for number in 1.. {
                    let start = UploadStart {
                        view: Some(view.clone()),
                        ..Default::default()
                    };
                    let messages = (0..FILES).flat_map(|file| {
                        let entry = UploadEntry {
                            path: format!("/{file}"),
                            ..Default::default()
                        };
                        upload_entry(entry, generation(file, number).as_bytes())
                    });
                    if upload(&mut client, start, messages.collect()).await.is_err() {
                        return;
                    }
                }
            });
            tokio::time::sleep(Duration::from_micros(random.random_range(500..40_000))).await;
            runtime.kill();
            sending.await.unwrap();
            for file in 0..FILES {
                let content = fs::read_to_string(directory.join(file.to_string())).unwrap();
                assert!(is_whole(file, &content), "file {file} is torn");
            }
            runtime.restart().await;
            assert_eq!(litter(&directory), Vec::<PathBuf>::new());
            assert_eq!(fs::read_dir(&directory).unwrap().count(), FILES);
        }
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_a_mount_point_is_written_in_place() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        fs::write(work.join("source"), "the source's content").unwrap();
        fs::create_dir(work.join("d")).unwrap();
        fs::write(work.join("d/f"), "under the mount").unwrap();
        let inode = fs::metadata(work.join("source")).unwrap().ino();
        let bound = Mounted::bind(&work.join("source"), work.join("d/f"));
        let written = info(run_op(&mut client, &view, write("/d/f", "short")).await);
        assert_eq!((written.inode, written.size), (inode, 5));
        assert_eq!(fs::read(work.join("source")).unwrap(), b"short");
        let outcome = run_op(&mut client, &view, edit("/d/f", "short", "a longer one")).await;
        assert!(matches!(outcome, Outcome::Edit(_)), "{outcome:?}");
        assert_eq!(fs::read(work.join("source")).unwrap(), b"a longer one");
        let start = UploadStart {
            view: Some(view.clone()),
            ..Default::default()
        };
        let entry = UploadEntry {
            path: "/d/f".into(),
            ..Default::default()
        };
        assert_eq!(
            upload(&mut client, start, upload_entry(entry, b"uploaded"))
                .await
                .unwrap()
                .entries,
            1
        );
        assert_eq!(fs::read(work.join("source")).unwrap(), b"uploaded");
        assert_eq!(litter(&work), Vec::<PathBuf>::new());
        drop(bound);
        assert_eq!(fs::read(work.join("d/f")).unwrap(), b"under the mount");
        assert_eq!(fs::read_dir(work.join("d")).unwrap().count(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_many_callers_are_each_whole() {
    within(async {
        let runtime = Runtime::start().await;
        let view = rooted(&runtime.workspace());
        let mut tasks = Vec::new();
        for caller in 0..CALLERS {
            let (mut client, view) = (runtime.connect().await, view.clone());
            tasks.push(tokio::spawn(async move {
                let line = format!("{caller}{}\n", "x".repeat(100));
                let ops = (0..ROUNDS)
                    .map(|_| write_as("/log", line.clone(), WriteMode::Append))
                    .collect();
                for outcome in run_ops(&mut client, &view, ops).await {
                    assert!(matches!(outcome, Outcome::Info(_)), "{outcome:?}");
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let log = fs::read_to_string(runtime.workspace().join("log")).unwrap();
        assert_eq!(log.lines().count(), CALLERS * ROUNDS);
        assert!(log.lines().all(|line| line.len() == 101));
    })
    .await;
}

#[tokio::test]
async fn a_fifo_is_written_to_and_never_waited_for() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let path = runtime.workspace().join("fifo");
        let view = rooted(&runtime.workspace());
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        // Nobody reads it: no call hangs, and none takes it for a file.
        for op in [read("/fifo"), edit("/fifo", "a", "b"), copy("/fifo", "/other")] {
            let outcome = run_op(&mut client, &view, op.clone()).await;
            assert_eq!(failed(&outcome).reason(), ErrorReason::FileNotRegular, "{op:?}");
        }
        failed(&run_op(&mut client, &view, write("/fifo", "lost")).await);
        let reader = tokio::task::spawn_blocking({
            let path = path.clone();
            move || {
                let mut text = String::new();
                fs::File::open(path).unwrap().read_to_string(&mut text).unwrap();
                text
            }
        });
        // The reader is there when the kernel lets a writer in.
        loop {
            let outcome = run_op(&mut client, &view, write("/fifo", "through the pipe")).await;
            if matches!(outcome, Outcome::Info(_)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(reader.await.unwrap(), "through the pipe");
        assert!(path.metadata().unwrap().file_type().is_fifo());
        let facts = info(run_op(&mut client, &view, stat("/fifo")).await);
        assert_eq!(facts.r#type(), sandgate_proto::runtime::v1::FileType::Fifo);
    })
    .await;
}
