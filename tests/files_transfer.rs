//! Files on their way in and out: whole, with what belongs to them, at any size in flat memory.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

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
        UploadRequest, UploadStart, WriteChunkRequest, WriteChunkResponse, download_response, file_version::Version,
        upload_request::Message,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime,
    files::{Downloaded, chunks, download, litter, path_of, rooted, snapshot, try_download, upload, upload_tar},
    new_id, reason, seeded,
};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, EntryType, Header};
use tokio::{io::AsyncWriteExt as _, process::Command, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;

const LIMIT: Duration = Duration::from_secs(180);
const CHUNK: usize = 64 << 10;
const HUGE: u64 = 2 << 30;
const MAX_GROWTH: u64 = 32 << 20;

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("the test hangs")
}

/// A thread that looks at the runtime's memory, and the most it saw.
struct Gauge {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

// === impl Gauge ===

impl Gauge {
    fn start(pid: u32) -> Self {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = thread::spawn({
            let (stop, most) = (stop.clone(), most.clone());
            move || {
                while !stop.load(Ordering::Relaxed) {
                    most.fetch_max(memory_of(pid), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(2));
                }
            }
        });
        Self {
            stop,
            most,
            thread: Some(thread),
        }
    }

    fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

/// As `Runtime::own_memory`, for a thread that can't hold the runtime.
fn memory_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn bytes_of_hex(digits: &[u8]) -> Bytes {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The chunk at an index: like no other, and cheap to make.
fn numbered(pattern: &[u8], index: u64) -> Bytes {
    let mut chunk = pattern.to_vec();
    chunk[..8].copy_from_slice(&index.to_le_bytes());
    chunk.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gibibytes_pass_both_ways_in_flat_memory() {
    within(async {
        let runtime = Runtime::start().await;
        let free = statvfs(runtime.workspace()).unwrap();
        let free = free.f_bavail * free.f_frsize;
        assert!(
            free > HUGE + (1 << 30),
            "this test needs 3 GiB of disk, and there are {free} bytes"
        );
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let mut pattern = vec![0; CHUNK];
        seeded().fill_bytes(&mut pattern);
        let count = HUGE / CHUNK as u64;
        let before = runtime.own_memory();
        let gauge = Gauge::start(runtime.pid());

        let (sender, receiver) = mpsc::channel(4);
        let sending = tokio::spawn({
            let (pattern, view) = (pattern.clone(), view.clone());
            async move {
                // Not by this process, which is not built for speed.
                let mut hasher = Command::new("sha256sum")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                let mut input = hasher.stdin.take().unwrap();
                let send = async |message| sender.send(UploadRequest { message: Some(message) }).await.unwrap();
                send(Message::Start(UploadStart {
                    view: Some(view),
                    ..Default::default()
                }))
                .await;
                send(Message::Entry(UploadEntry {
                    path: "/huge".into(),
                    size: Some(HUGE),
                    ..Default::default()
                }))
                .await;
                for index in 0..count {
                    let chunk = numbered(&pattern, index);
                    input.write_all(&chunk).await.unwrap();
                    send(Message::Chunk(chunk)).await;
                }
                drop(input);
                let sha256 = bytes_of_hex(&hasher.wait_with_output().await.unwrap().stdout[..64]);
                send(Message::EntryEnd(UploadEntryEnd { sha256: sha256.clone() })).await;
                sha256
            }
        });
        let answer = client.upload(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let sha256 = sending.await.unwrap();
        assert_eq!(
            (answer.entries, answer.bytes, answer.failures_total),
            (1, HUGE, 0),
            "{answer:?}"
        );
        let up = gauge.finish();
        let file = fs::File::open(runtime.workspace().join("huge")).unwrap();
        let mut found = vec![0; CHUNK];
        for index in [0, 1, count / 2, count - 1] {
            file.read_exact_at(&mut found, index * CHUNK as u64).unwrap();
            assert!(found == numbered(&pattern, index), "chunk {index}");
        }

        let gauge = Gauge::start(runtime.pid());
        let paths = vec![DownloadPath {
            path: "/huge".into(),
            ..Default::default()
        }];
        let request = DownloadRequest {
            view: Some(view),
            paths,
            ..Default::default()
        };
        let mut stream = client.download(request).await.unwrap().into_inner();
        let (mut received, mut ended, mut summary) = (0, None, None);
        while let Some(answer) = stream.message().await.unwrap() {
            match answer.message.unwrap() {
                download_response::Message::Chunk(chunk) => {
                    assert!(chunk == numbered(&pattern, received / CHUNK as u64), "at {received}");
                    received += chunk.len() as u64;
                }
                download_response::Message::EntryEnd(end) => ended = Some(end),
                download_response::Message::Summary(end) => summary = Some(end),
                download_response::Message::Failure(failure) => panic!("{failure:?}"),
                _ => {}
            }
        }
        let down = gauge.finish();
        fs::remove_file(runtime.workspace().join("huge")).unwrap();
        assert_eq!((received, ended.unwrap().sha256), (HUGE, sha256));
        assert_eq!(summary.unwrap().bytes, HUGE);
        println!("memory: {before} before, at most {up} while uploading and {down} while downloading");
        assert!(up <= before + MAX_GROWTH, "{up} while uploading, {before} before");
        assert!(down <= before + MAX_GROWTH, "{down} while downloading, {before} before");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_that_nobody_reads_takes_no_memory() {
    within(async {
        let runtime = Runtime::start().await;
        fs::File::create(runtime.workspace().join("sparse"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let mut client = runtime.connect().await;
        let before = runtime.own_memory();
        for format in [TransferFormat::Files, TransferFormat::Tar] {
            let paths = vec![DownloadPath {
                path: "/sparse".into(),
                ..Default::default()
            }];
            let request = DownloadRequest {
                view: Some(rooted(&runtime.workspace())),
                paths,
                format: format.into(),
            };
            let mut stream = client.download(request).await.unwrap().into_inner();
            stream.message().await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = runtime.own_memory();
            assert!(
                now <= before + MAX_GROWTH,
                "{now} with a reader that stopped, {before} before"
            );
        }
    })
    .await;
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

fn set_modified(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanos,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree with one of everything.
fn plant(root: &Path) {
    use std::os::unix::fs::PermissionsExt as _;

    let at = |name: &[u8]| root.join(OsStr::from_bytes(name));
    fs::create_dir_all(at(b"dir/empty")).unwrap();
    fs::create_dir_all(at(b"dir/locked")).unwrap();
    let long = "l".repeat(200);
    fs::create_dir(at(long.as_bytes())).unwrap();
    let names: Vec<(Vec<u8>, usize, u32)> = vec![
        (b"empty".to_vec(), 0, 0o644),
        (b"one".to_vec(), 1, 0o600),
        (b"block".to_vec(), 512, 0o755),
        (b"chunk".to_vec(), CHUNK, 0o4755),
        (b"big".to_vec(), 3 * CHUNK + 17, 0o400),
        (b"dir/nested".to_vec(), 1000, 0o2640),
        (b"dir/locked/f".to_vec(), 10, 0o000),
        (b"not utf8 \xff\xfe".to_vec(), 20, 0o644),
        ("ünïcode \n newline".as_bytes().to_vec(), 30, 0o644),
        (format!("{long}/{}", "m".repeat(250)).into_bytes(), 40, 0o644),
        (
            [long.as_bytes(), b"/\xff", "n".repeat(200).as_bytes()].concat(),
            50,
            0o644,
        ),
    ];
    for (n, (name, size, mode)) in names.iter().enumerate() {
        let content: Vec<u8> = (0..*size).map(|byte| (byte * 31 + n) as u8).collect();
        fs::write(at(name), content).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(*mode)).unwrap();
        set_modified(&at(name), 1_000_000_000 + n as i64, 123_456_789);
    }
    for (name, target) in [
        (&b"link"[..], &b"dir/nested"[..]),
        (b"dangling", b"/no/such/thing"),
        (b"up", b"../../.."),
        (b"raw link", b"to \xff"),
        (b"long link", long.as_bytes()),
    ] {
        link(OsStr::from_bytes(target), at(name)).unwrap();
        set_modified(&at(name), 900_000_000, 500);
    }
    fs::set_permissions(at(b"dir/locked"), fs::Permissions::from_mode(0o500)).unwrap();
    for (n, name) in [&b"dir/empty"[..], b"dir/locked", b"dir", long.as_bytes()]
        .into_iter()
        .enumerate()
    {
        set_modified(&at(name), 800_000_000 + n as i64, 0);
    }
}

/// The messages that upload what was downloaded.
fn as_upload(down: &Downloaded, under: &str) -> Vec<Message> {
    let mut messages = Vec::new();
    for (entry, content, end) in &down.entries {
        let info = entry.info.clone().unwrap();
        let raw = |text: &str, raw: &[u8]| -> Bytes {
            let path = path_of(text, raw);
            let mut bytes = under.as_bytes().to_vec();
            bytes.extend_from_slice(path.as_os_str().as_bytes());
            bytes.into()
        };
        let entry = UploadEntry {
            path_raw: raw(&info.path, &info.path_raw),
            r#type: info.r#type,
            mode: (info.r#type() != FileType::Symlink).then_some(info.mode),
            modified: info.modified,
            size: (info.r#type() == FileType::Regular).then_some(info.size),
            symlink_target: info.symlink_target.clone(),
            symlink_target_raw: info.symlink_target_raw.clone(),
            ..Default::default()
        };
        messages.push(Message::Entry(entry));
        messages.extend(chunks(content));
        let sha256 = end.as_ref().map(|end| end.sha256.clone()).unwrap_or_default();
        messages.push(Message::EntryEnd(UploadEntryEnd { sha256 }));
    }
    messages
}

#[tokio::test]
async fn a_tree_comes_out_and_goes_in_as_it_was() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let source = work.join("source");
        fs::create_dir(&source).unwrap();
        plant(&source);
        let expected = tree(&source);
        let view = rooted(&source);

        let down = download(&mut client, &view, &["/"], TransferFormat::Files).await;
        let summary = down.summary.unwrap();
        assert_eq!(
            (summary.entries, summary.failures),
            (expected.len() as u64 + 1, 0),
            "{:?}",
            down.failures
        );
        assert_eq!(
            summary.bytes,
            expected
                .values()
                .filter(|kept| kept.kind == 0o100_000)
                .map(|kept| kept.content.len() as u64)
                .sum::<u64>()
        );
        for (entry, content, end) in &down.entries {
            let info = entry.info.as_ref().unwrap();
            if info.r#type() == FileType::Regular {
                let end = end.as_ref().expect("a file has its end");
                assert_eq!(
                    (&end.sha256[..], end.size),
                    (&Sha256::digest(content)[..], content.len() as u64)
                );
            } else {
                assert!(content.is_empty() && end.is_none());
            }
        }
        let start = || UploadStart {
            view: Some(rooted(&work)),
            ..Default::default()
        };
        let answer = upload(&mut client, start(), as_upload(&down, "/files")).await.unwrap();
        assert_eq!(answer.failures_total, 0, "{answer:?}");
        assert_eq!(tree(&work.join("files")), expected);

        let down = download(&mut client, &view, &["/"], TransferFormat::Tar).await;
        assert_eq!(down.summary.unwrap().failures, 0, "{:?}", down.failures);
        assert_eq!(down.summary.unwrap().bytes, summary.bytes);
        let answer = upload_tar(&mut client, &rooted(&work), "/tarred", &down.tar)
            .await
            .unwrap();
        assert_eq!(answer.failures_total, 0, "{answer:?}");
        assert_eq!(tree(&work.join("tarred")), expected);

        // A second time, over what is there.
        let answer = upload_tar(&mut client, &rooted(&work), "/tarred", &down.tar)
            .await
            .unwrap();
        assert_eq!(answer.failures_total, 0, "{answer:?}");
        assert_eq!(tree(&work.join("tarred")), expected);
        assert_eq!(litter(&work), Vec::<PathBuf>::new());
    })
    .await;
}

#[tokio::test]
async fn the_tar_is_one_that_others_can_read_and_write() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let source = work.join("source");
        fs::create_dir(&source).unwrap();
        plant(&source);
        let expected = tree(&source);
        let down = download(&mut client, &rooted(&source), &["/"], TransferFormat::Tar).await;
        let mut archive = Archive::new(&down.tar[..]);
        let mut names = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            names.insert(name, (entry.header().mode().unwrap(), content));
        }
        for (path, kept) in &expected {
            let (mode, content) = names
                .get(path)
                .unwrap_or_else(|| panic!("{path:?} is missing in {:?}", names.keys()));
            assert!(kept.kind == 0o120_000 || *mode == kept.mode, "{path:?}");
            assert!(kept.kind != 0o100_000 || *content == kept.content, "{path:?}");
        }
        let mut builder = Builder::new(Vec::new());
        builder.follow_symlinks(false);
        builder.append_dir_all(".", &source).unwrap();
        let tar = builder.into_inner().unwrap();
        let answer = upload_tar(&mut client, &rooted(&work), "/in", &tar).await.unwrap();
        assert_eq!(answer.failures_total, 0, "{answer:?}");
        let whole_seconds = |mut tree: BTreeMap<PathBuf, Kept>| {
            tree.values_mut().for_each(|kept| kept.modified.1 = 0);
            tree
        };
        assert_eq!(whole_seconds(tree(&work.join("in"))), whole_seconds(expected));
    })
    .await;
}

#[tokio::test]
async fn ten_thousand_small_files_as_a_tar() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let mut builder = Builder::new(Vec::new());
        for n in 0..10_000 {
            let content = format!("content of {n}");
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o640);
            header.set_mtime(1_000_000_000 + n);
            builder
                .append_data(&mut header, format!("d{}/f{n}", n % 100), content.as_bytes())
                .unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let before = runtime.own_memory();
        let answer = upload_tar(&mut client, &view, "/many", &tar).await.unwrap();
        assert_eq!((answer.entries, answer.failures_total), (10_000, 0));
        let down = download(&mut client, &view, &["/many"], TransferFormat::Tar).await;
        assert_eq!(
            (down.summary.unwrap().entries, down.summary.unwrap().failures),
            (10_101, 0)
        );
        let mut archive = Archive::new(&down.tar[..]);
        let mut files = 0;
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            if entry.header().entry_type() != EntryType::Regular {
                continue;
            }
            let name = entry.path().unwrap().into_owned();
            let n: u64 = name.file_name().unwrap().to_str().unwrap()[1..].parse().unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            assert_eq!(content, format!("content of {n}"));
            assert_eq!(
                (entry.header().mode().unwrap(), entry.header().mtime().unwrap()),
                (0o640, 1_000_000_000 + n)
            );
            files += 1;
        }
        assert_eq!(files, 10_000);
        let now = runtime.own_memory();
        assert!(now <= before + MAX_GROWTH, "{now} after, {before} before");
    })
    .await;
}

fn file(path: &str) -> UploadEntry {
    UploadEntry {
        path: path.into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_bad_entry_fails_alone() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        fs::write(work.join("old"), "old").unwrap();
        fs::create_dir(work.join("dir")).unwrap();
        let ended = |entry, content: &[u8], sha256: &[u8]| {
            let mut messages = vec![Message::Entry(entry)];
            messages.extend(chunks(content));
            messages.push(Message::EntryEnd(UploadEntryEnd {
                sha256: Bytes::copy_from_slice(sha256),
            }));
            messages
        };
        let good = Sha256::digest(b"new");
        let cases: Vec<(Vec<Message>, ErrorReason, &str)> = vec![
            (ended(file("/old"), b"new", &[7; 32]), ErrorReason::HashMismatch, "/old"),
            (ended(file("/old"), b"new", b"short"), ErrorReason::HashMismatch, "/old"),
            (
                ended(
                    UploadEntry {
                        size: Some(4),
                        ..file("/old")
                    },
                    b"new",
                    b"",
                ),
                ErrorReason::HashMismatch,
                "/old",
            ),
            (
                ended(
                    UploadEntry {
                        size: Some(2),
                        ..file("/old")
                    },
                    b"new",
                    b"",
                ),
                ErrorReason::HashMismatch,
                "/old",
            ),
            (ended(file("/dir"), b"new", b""), ErrorReason::FileIsDirectory, "/dir"),
            (
                ended(file("/old/x"), b"new", b""),
                ErrorReason::FileNotDirectory,
                "/old/x",
            ),
            (
                ended(
                    UploadEntry {
                        r#type: FileType::Fifo.into(),
                        ..file("/fifo")
                    },
                    b"",
                    b"",
                ),
                ErrorReason::InvalidArgument,
                "/fifo",
            ),
            (
                ended(
                    UploadEntry {
                        mode: Some(0o10000),
                        ..file("/mode")
                    },
                    b"",
                    b"",
                ),
                ErrorReason::InvalidArgument,
                "/mode",
            ),
            (ended(file("/nul\0"), b"", b""), ErrorReason::PathInvalid, "/nul\0"),
        ];
        let mut messages = Vec::new();
        for (n, (case, ..)) in cases.iter().enumerate() {
            messages.extend(case.clone());
            messages.extend(ended(file(&format!("/good-{n}")), b"new", &good));
        }
        let start = UploadStart {
            view: Some(rooted(&work)),
            ..Default::default()
        };
        let answer = upload(&mut client, start, messages).await.unwrap();
        assert_eq!(
            (answer.entries, answer.bytes),
            (cases.len() as u64, 3 * cases.len() as u64),
            "{answer:?}"
        );
        assert_eq!(answer.failures_total as usize, cases.len());
        for ((_, expected, path), failure) in cases.iter().zip(&answer.failures) {
            let error = failure.error.as_ref().unwrap();
            assert_eq!((error.reason(), error.path.as_str()), (*expected, *path), "{error:?}");
        }
        for n in 0..cases.len() {
            assert_eq!(fs::read(work.join(format!("good-{n}"))).unwrap(), b"new");
        }
        assert_eq!(fs::read(work.join("old")).unwrap(), b"old");
        assert_eq!(litter(&work), Vec::<PathBuf>::new());

        let down = download(
            &mut client,
            &rooted(&work),
            &["/old", "/missing", "/good-0"],
            TransferFormat::Files,
        )
        .await;
        let summary = down.summary.unwrap();
        assert_eq!(
            (
                down.entries.len(),
                down.failures.len(),
                summary.entries,
                summary.failures
            ),
            (2, 1, 2, 1)
        );
        assert_eq!(
            (down.failures[0].reason(), down.failures[0].path.as_str()),
            (ErrorReason::FileNotFound, "/missing")
        );
    })
    .await;
}

#[tokio::test]
async fn messages_in_a_wrong_order_are_refused() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let start = || UploadStart {
            view: Some(view.clone()),
            ..Default::default()
        };
        let end = || Message::EntryEnd(UploadEntryEnd::default());
        for messages in [
            vec![Message::Start(start())],
            vec![Message::Chunk(Bytes::from_static(b"x"))],
            vec![end()],
            vec![Message::Entry(file("/a")), Message::Entry(file("/b"))],
            vec![Message::Entry(file("/a"))],
        ] {
            let status = upload(&mut client, start(), messages.clone()).await.unwrap_err();
            assert_eq!(reason(&status), ErrorReason::InvalidArgument, "{messages:?}");
        }
        let requests = vec![UploadRequest {
            message: Some(Message::Entry(file("/a"))),
        }];
        let status = client.upload(tokio_stream::iter(requests)).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::InvalidArgument);
        let garbage = vec![b'g'; 2048];
        let status = upload_tar(&mut client, &view, "/t", &garbage).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::ArchiveInvalid);
        // A tar that ends in the middle of a file leaves the files before it, and not that one.
        let mut builder = Builder::new(Vec::new());
        for name in ["first", "second"] {
            let mut header = Header::new_gnu();
            header.set_size(2000);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, &[b'x'; 2000][..]).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let status = upload_tar(&mut client, &view, "/t", &tar[..4000]).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::ArchiveInvalid);
        let names: Vec<_> = runtime
            .workspace()
            .join("t")
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["first"]);
        assert!(!runtime.workspace().join("a").exists());
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_upload_leaves_the_old_file() {
    within(async {
        let runtime = Runtime::start().await;
        let work = runtime.workspace();
        fs::write(work.join("f"), "old").unwrap();
        let before = tree(&work);
        for drop_connection in [false, true] {
            let mut client = runtime.connect().await;
            // With another handle the connection outlives the call.
            let kept = (!drop_connection).then(|| client.clone());
            let (sender, receiver) = mpsc::channel(1);
            let view = rooted(&work);
            let call = tokio::spawn(async move { client.upload(ReceiverStream::new(receiver)).await });
            let send = async |message| sender.send(UploadRequest { message: Some(message) }).await.unwrap();
            send(Message::Start(UploadStart {
                view: Some(view),
                ..Default::default()
            }))
            .await;
            send(Message::Entry(file("/f"))).await;
            for _ in 0..100 {
                send(Message::Chunk(vec![b'n'; CHUNK].into())).await;
            }
            call.abort();
            let _ = call.await;
            // When the runtime has let go of the temporary, nothing of it is left.
            while open_files(runtime.pid(), &work) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            assert_eq!(tree(&work), before);
            assert_eq!(litter(&work), Vec::<PathBuf>::new());
            drop(kept);
        }
    })
    .await;
}

/// Files beneath a directory that the process has open, unnamed ones too.
fn open_files(pid: u32, directory: &Path) -> usize {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let paths = links.filter_map(|link| fs::read_link(link.path()).ok());
    paths
        .filter(|path| path.starts_with(directory) && path != directory)
        .count()
}

#[tokio::test]
async fn a_download_that_is_left_is_let_go() {
    within(async {
        let runtime = Runtime::start().await;
        let work = runtime.workspace();
        fs::File::create(work.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let mut client = runtime.connect().await;
        let paths = vec![DownloadPath {
            path: "/sparse".into(),
            ..Default::default()
        }];
        let request = DownloadRequest {
            view: Some(rooted(&work)),
            paths,
            ..Default::default()
        };
        let mut stream = client.download(request).await.unwrap().into_inner();
        stream.message().await.unwrap().unwrap();
        assert_eq!(open_files(runtime.pid(), &work), 1);
        drop(stream);
        while open_files(runtime.pid(), &work) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

async fn resume(client: &mut Client, view: &FileView, offset: u64, expected: Option<Vec<u8>>) -> Downloaded {
    let expected = expected.map(|sha256| FileVersion {
        version: Some(Version::Sha256(sha256.into())),
    });
    let paths = vec![DownloadPath {
        path: "/f".into(),
        offset,
        expected,
        ..Default::default()
    }];
    try_download(
        client,
        DownloadRequest {
            view: Some(view.clone()),
            paths,
            ..Default::default()
        },
    )
    .await
    .unwrap()
}

#[tokio::test]
async fn a_download_goes_on_from_an_offset() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let mut random = seeded();
        let mut content = vec![0; 1_000_000];
        random.fill_bytes(&mut content);
        fs::write(runtime.workspace().join("f"), &content).unwrap();
        let version = Sha256::digest(&content).to_vec();
        for _ in 0..20 {
            let offset = random.random_range(0..=content.len());
            let down = resume(&mut client, &view, offset as u64, Some(version.clone())).await;
            let (entry, rest, end) = &down.entries[0];
            assert_eq!(entry.offset, offset as u64);
            assert!(rest[..] == content[offset..]);
            let end = end.as_ref().unwrap();
            assert_eq!(
                (&end.sha256[..], end.size),
                (&Sha256::digest(rest)[..], rest.len() as u64)
            );
        }
        let behind = resume(&mut client, &view, content.len() as u64 + 1, None).await;
        assert_eq!(
            (behind.entries.len(), behind.failures.len()),
            (0, 1),
            "{:?}",
            behind.failures
        );
        fs::write(runtime.workspace().join("f"), "changed").unwrap();
        let changed = resume(&mut client, &view, 3, Some(version)).await;
        assert_eq!(changed.failures[0].reason(), ErrorReason::FileVersionMismatch);
        assert!(changed.entries.is_empty());
        let paths = vec![DownloadPath {
            path: "/f".into(),
            offset: 1,
            ..Default::default()
        }];
        let tar = DownloadRequest {
            view: Some(view),
            paths,
            format: TransferFormat::Tar.into(),
        };
        assert_eq!(
            reason(&try_download(&mut client, tar).await.unwrap_err()),
            ErrorReason::InvalidArgument
        );
    })
    .await;
}

/// One upload in chunks.
struct Chunked {
    client: Client,
    id: String,
    view: FileView,
    entry: UploadEntry,
}

// === impl Chunked ===

impl Chunked {
    async fn send(&mut self, offset: u64, data: &[u8], end: Option<&[u8]>) -> Result<WriteChunkResponse, ErrorReason> {
        let request = WriteChunkRequest {
            upload_id: self.id.clone(),
            view: Some(self.view.clone()),
            entry: Some(self.entry.clone()),
            offset,
            data: Bytes::copy_from_slice(data),
            finish: end.is_some(),
            sha256: Bytes::copy_from_slice(end.unwrap_or_default()),
            ..Default::default()
        };
        self.client
            .write_chunk(request)
            .await
            .map(tonic::Response::into_inner)
            .map_err(|status| reason(&status))
    }
}

#[tokio::test]
async fn chunks_may_be_repeated_but_not_left_out() {
    within(async {
        let runtime = Runtime::start().await;
        let client = runtime.connect().await;
        let path = runtime.workspace().join("dir/f");
        let modified = Timestamp {
            seconds: 1_234_567_890,
            nanos: 500_000_000,
        };
        let entry = UploadEntry {
            mode: Some(0o751),
            modified: Some(modified),
            size: Some(9),
            ..file("/dir/f")
        };
        let mut up = Chunked {
            client,
            id: new_id("up"),
            view: rooted(&runtime.workspace()),
            entry,
        };
        let accepted = |answer: Result<WriteChunkResponse, ErrorReason>| answer.unwrap().accepted;
        assert_eq!(up.send(3, b"def", None).await.unwrap_err(), ErrorReason::UploadNotFound);
        assert_eq!(accepted(up.send(0, b"abc", None).await), 3);
        assert_eq!(accepted(up.send(0, b"abc", None).await), 3);
        assert_eq!(up.send(6, b"ghi", None).await.unwrap_err(), ErrorReason::UploadGap);
        assert_eq!(accepted(up.send(1, b"bcdef", None).await), 6);
        assert!(!path.exists(), "it appears at its end");
        let other = UploadEntry {
            mode: Some(0o700),
            ..up.entry.clone()
        };
        let entry = std::mem::replace(&mut up.entry, other);
        assert_eq!(
            up.send(6, b"ghi", None).await.unwrap_err(),
            ErrorReason::InvalidArgument
        );
        up.entry = entry;
        let hash = Sha256::digest(b"abcdefghi");
        let first = up.send(6, b"ghi", Some(&hash[..])).await.unwrap();
        let again = up.send(6, b"ghi", Some(&hash[..])).await.unwrap();
        assert_eq!(first, again, "the last answer may be asked for again");
        let info = first.info.unwrap();
        assert_eq!(
            (first.accepted, info.size, info.mode, info.modified),
            (9, 9, 0o751, Some(modified))
        );
        assert_eq!(fs::read(&path).unwrap(), b"abcdefghi");
        assert_eq!(path.metadata().unwrap().mtime(), 1_234_567_890);

        up.id = new_id("up");
        up.entry.size = None;
        assert_eq!(
            up.send(0, b"wrong", Some(&hash[..])).await.unwrap_err(),
            ErrorReason::HashMismatch
        );
        assert_eq!(fs::read(&path).unwrap(), b"abcdefghi");
        assert_eq!(litter(&runtime.workspace()), Vec::<PathBuf>::new());
        up.id = "not an id".into();
        assert_eq!(up.send(0, b"", None).await.unwrap_err(), ErrorReason::InvalidArgument);
        up.id = new_id("up");
        assert_eq!(
            up.send(0, &vec![0; (2 << 20) + 1], None).await.unwrap_err(),
            ErrorReason::InvalidArgument
        );
        // In large chunks, each of them twice.
        let mut content = vec![0; 5 << 20];
        seeded().fill_bytes(&mut content);
        up.entry = file("/large");
        for (n, chunk) in content.chunks(2 << 20).enumerate() {
            for _ in 0..2 {
                assert_eq!(
                    accepted(up.send((n * (2 << 20)) as u64, chunk, None).await),
                    (n * (2 << 20) + chunk.len()) as u64
                );
            }
        }
        up.send(content.len() as u64, b"", Some(&Sha256::digest(&content)))
            .await
            .unwrap();
        assert!(fs::read(runtime.workspace().join("large")).unwrap() == content);
    })
    .await;
}

#[tokio::test]
async fn many_files_travel_in_one_stream() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let mut random = seeded();
        let mut expected = BTreeMap::new();
        let mut messages = Vec::new();
        for n in 0..500 {
            let mut content = vec![0; random.random_range(0..4096)];
            random.fill_bytes(&mut content);
            // Chunks of any size, empty ones too.
            messages.push(Message::Entry(file(&format!("/d{}/f{n:03}", n % 7))));
            for chunk in content.chunks(random.random_range(1..2000)) {
                messages.push(Message::Chunk(chunk.to_vec().into()));
                messages.push(Message::Chunk(Bytes::new()));
            }
            messages.push(Message::EntryEnd(UploadEntryEnd {
                sha256: Sha256::digest(&content).to_vec().into(),
            }));
            expected.insert(format!("/d{}/f{n:03}", n % 7), content);
        }
        let start = UploadStart {
            view: Some(view.clone()),
            ..Default::default()
        };
        let answer = upload(&mut client, start, messages).await.unwrap();
        assert_eq!((answer.entries, answer.failures_total), (500, 0), "{answer:?}");
        let paths: Vec<&str> = expected.keys().map(String::as_str).collect();
        let down = download(&mut client, &view, &paths, TransferFormat::Files).await;
        let received: BTreeMap<_, _> = down
            .entries
            .into_iter()
            .map(|(entry, content, _)| (entry.info.unwrap().path, content))
            .collect();
        assert!(received == expected);
    })
    .await;
}
