//! Whole trees and many files, with what belongs to them, as files and as tar.

use super::*;

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

/// A runtime with a planted directory in its workspace, and what is in it.
async fn planted() -> (Runtime, PathBuf, BTreeMap<PathBuf, Kept>) {
    let runtime = Runtime::start().await;
    let source = runtime.workspace().join("source");
    fs::create_dir(&source).unwrap();
    plant(&source);
    let expected = tree(&source);
    (runtime, source, expected)
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
        let (runtime, source, expected) = planted().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
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
        let answer = upload(&mut client, upload_start(&rooted(&work)), as_upload(&down, "/files"))
            .await
            .unwrap();
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
        let (runtime, source, expected) = planted().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
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
            messages.push(Message::Entry(file_at(&format!("/d{}/f{n:03}", n % 7))));
            for chunk in content.chunks(random.random_range(1..2000)) {
                messages.push(Message::Chunk(chunk.to_vec().into()));
                messages.push(Message::Chunk(Bytes::new()));
            }
            messages.push(Message::EntryEnd(UploadEntryEnd {
                sha256: Sha256::digest(&content).to_vec().into(),
            }));
            expected.insert(format!("/d{}/f{n:03}", n % 7), content);
        }
        let start = upload_start(&view);
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
