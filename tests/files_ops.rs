//! What each file operation answers, batches, and watching, over the wire.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

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
const ANSWER: usize = 3 << 20;

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

#[tokio::test]
async fn every_operation_answers_in_its_shape() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        let ops = vec![
            mkdir("/d", false),
            write("/d/f", "one two one\n"),
            stat("/d/f"),
            read("/d/f"),
            edit("/d/f", "two", "2"),
            symlink("/d/l", "f"),
            readlink("/d/l"),
            stat("/d/l"),
            stat_followed("/d/l"),
            hash("/d/l"),
            copy("/d", "/e"),
            relocate("/e/f", "/e/g"),
            touch("/e/t"),
            chmod("/e/g", 0o640),
            list("/", 2),
            glob("/", "**/[fg]"),
            grep("/", "one"),
            remove("/e", true),
        ];
        let outcomes = run_ops(&mut client, &view, ops).await;
        let made = info(outcomes[0].clone());
        assert_eq!(
            (made.path.as_str(), made.r#type(), made.mode),
            ("/d", FileType::Directory, 0o755)
        );
        let on_disk = fs::metadata(work.join("d/f")).unwrap();
        let facts = info(outcomes[2].clone());
        assert_eq!(
            (facts.path.as_str(), facts.r#type(), facts.size, facts.mode),
            ("/d/f", FileType::Regular, 12, 0o644)
        );
        assert_eq!((facts.uid, facts.gid, facts.links), (0, 0, 1));
        assert_eq!(facts, info(outcomes[1].clone()), "a write answers what stat does");
        let text = content(&outcomes[3]);
        assert_eq!(
            (&text.content[..], text.offset, text.more_before, text.more_after),
            (&b"one two one\n"[..], 0, false, false)
        );
        assert_eq!((text.binary, text.info.as_ref()), (false, Some(&facts)));
        let Outcome::Edit(edited) = &outcomes[4] else {
            panic!("{:?}", outcomes[4])
        };
        assert_eq!((edited.replacements, edited.info.as_ref().unwrap().size), (1, 10));
        assert_eq!(edited.info.as_ref().unwrap().inode, on_disk.ino());
        assert_eq!(fs::read(work.join("d/f")).unwrap(), b"one 2 one\n");
        let link = info(outcomes[5].clone());
        assert_eq!(
            (link.r#type(), link.symlink_target.as_str(), link.size),
            (FileType::Symlink, "f", 1)
        );
        assert!(
            matches!(&outcomes[6], Outcome::Readlink(link) if link.target == "f"),
            "{:?}",
            outcomes[6]
        );
        assert_eq!(info(outcomes[7].clone()), link);
        assert_eq!(info(outcomes[8].clone()).inode, on_disk.ino());
        let Outcome::Hash(hash) = &outcomes[9] else {
            panic!("{:?}", outcomes[9])
        };
        assert_eq!((&hash.sha256[..], hash.size), (&Sha256::digest(b"one 2 one\n")[..], 10));
        assert_eq!(info(outcomes[10].clone()).path, "/e");
        assert_eq!(info(outcomes[11].clone()).path, "/e/g");
        assert_eq!(info(outcomes[12].clone()).size, 0);
        assert_eq!(info(outcomes[13].clone()).mode, 0o640);
        let Outcome::List(listed) = &outcomes[14] else {
            panic!("{:?}", outcomes[14])
        };
        let names: Vec<_> = listed.entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(names, ["/d", "/d/f", "/d/l", "/e", "/e/g", "/e/l", "/e/t"]);
        assert_eq!(listed.next_page_token, "");
        let Outcome::Glob(globbed) = &outcomes[15] else {
            panic!("{:?}", outcomes[15])
        };
        let names: Vec<_> = globbed.entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!((names, globbed.truncated), (vec!["/d/f", "/e/g"], false));
        let Outcome::Grep(found) = &outcomes[16] else {
            panic!("{:?}", outcomes[16])
        };
        let names: Vec<_> = found
            .files
            .iter()
            .map(|file| (file.path.as_str(), file.lines[0].number))
            .collect();
        assert_eq!((names, found.files_searched), (vec![("/d/f", 1), ("/e/g", 1)], 3));
        assert_eq!(&found.files[0].lines[0].text[..], b"one 2 one");
        assert!(
            matches!(&outcomes[17], Outcome::Remove(removed) if removed.removed == 4),
            "{:?}",
            outcomes[17]
        );
        assert!(!work.join("e").exists());
    })
    .await;
}

#[tokio::test]
async fn errors_name_their_reason_and_path() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let ops = vec![mkdir("/d/e", true), write("/f", "aa\0aa"), symlink("/l", "nowhere")];
        run_ops(&mut client, &view, ops).await;
        for (op, expected, path) in [
            (read("/missing"), ErrorReason::FileNotFound, "/missing"),
            (read("/d"), ErrorReason::FileIsDirectory, "/d"),
            (read("/f/x"), ErrorReason::FileNotDirectory, "/f/x"),
            (list("/f", 1), ErrorReason::FileNotDirectory, "/f"),
            (mkdir("/d", false), ErrorReason::FileAlreadyExists, "/d"),
            (mkdir("/x/y", false), ErrorReason::FileNotFound, "/x/y"),
            (remove("/d", false), ErrorReason::FileDirectoryNotEmpty, "/d"),
            (remove("/missing", false), ErrorReason::FileNotFound, "/missing"),
            (
                write_as("/f", "", WriteMode::CreateOnly),
                ErrorReason::FileAlreadyExists,
                "/f",
            ),
            (
                write_as("/l", "", WriteMode::CreateOnly),
                ErrorReason::FileAlreadyExists,
                "/l",
            ),
            (write("/d", ""), ErrorReason::FileIsDirectory, "/d"),
            (edit("/f", "b", "c"), ErrorReason::EditNoMatch, "/f"),
            (edit("/f", "a", "c"), ErrorReason::EditAmbiguous, "/f"),
            (edit("/f", "", "c"), ErrorReason::InvalidArgument, "/f"),
            (readlink("/f"), ErrorReason::FileIo, "/f"),
            (glob("/", "[a"), ErrorReason::PatternInvalid, ""),
            (grep("/", "(a"), ErrorReason::PatternInvalid, ""),
            (relocate("/d", "/d/e/d"), ErrorReason::PathInvalid, "/d/e/d"),
            (copy("/d", "/d/e/d"), ErrorReason::PathInvalid, "/d/e/d"),
            (chmod("/f", 0o10000), ErrorReason::InvalidArgument, "/f"),
        ] {
            let outcome = run_op(&mut client, &view, op.clone()).await;
            let error = failed(&outcome);
            assert_eq!(error.reason(), expected, "{op:?}: {error:?}");
            if !matches!(expected, ErrorReason::InvalidArgument | ErrorReason::PatternInvalid) {
                assert_eq!(error.path, path, "{op:?}");
            }
            assert!(!error.message.is_empty());
            assert_eq!(error.count, if expected == ErrorReason::EditAmbiguous { 4 } else { 0 });
        }
    })
    .await;
}

#[tokio::test]
async fn a_batch_goes_on_or_stops_at_the_first_error() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        let ops = || {
            vec![
                write_as("/log", "1", WriteMode::Append),
                read("/no"),
                write_as("/log", "2", WriteMode::Append),
                read("/log"),
            ]
        };
        let outcomes = run_ops(&mut client, &view, ops()).await;
        assert_eq!(failed(&outcomes[1]).reason(), ErrorReason::FileNotFound);
        assert_eq!(&content(&outcomes[3]).content[..], b"12");
        let mut request = batch(&view, ops());
        request.stop_on_error = true;
        let outcomes = send(&mut client, request).await;
        assert!(matches!(outcomes[0], Outcome::Info(_)) && matches!(outcomes[1], Outcome::Error(_)));
        for outcome in &outcomes[2..] {
            assert!(
                matches!(outcome, Outcome::NotRun(skipped) if skipped.why() == Why::EarlierError),
                "{outcome:?}"
            );
        }
        assert_eq!(fs::read(runtime.workspace().join("log")).unwrap(), b"121");
        let many = (0..1001).map(|_| stat("/")).collect();
        assert_eq!(
            reason(&client.file_ops(batch(&view, many)).await.unwrap_err()),
            ErrorReason::InvalidArgument
        );
        let empty = sandgate_proto::runtime::v1::FileOp { op: None };
        let mut request = batch(&view, vec![]);
        request.ops = vec![empty];
        failed(&send(&mut client, request).await[0]);
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_is_full_says_what_was_not_run() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        fs::write(runtime.workspace().join("big"), vec![b'x'; 4 << 20]).unwrap();
        let ops = vec![
            read("/big"),
            read("/big"),
            read("/big"),
            read("/big"),
            write("/after", ""),
        ];
        let answer = client.file_ops(batch(&view, ops)).await.unwrap().into_inner();
        assert!(prost_size(&answer) <= ANSWER);
        let outcomes: Vec<_> = answer
            .results
            .into_iter()
            .map(|result| result.result.unwrap())
            .collect();
        for outcome in &outcomes[..2] {
            assert_eq!(
                (content(outcome).content.len(), content(outcome).more_after),
                (1 << 20, true)
            );
        }
        for outcome in &outcomes[3..] {
            assert!(
                matches!(outcome, Outcome::NotRun(skipped) if skipped.why() == Why::AnswerFull),
                "{outcome:?}"
            );
        }
        assert!(
            !runtime.workspace().join("after").exists(),
            "what is not run has no effect"
        );
        let most = Op::Read(ReadOp {
            path: "/big".into(),
            max_bytes: 8 << 20,
            ..Default::default()
        });
        let outcome = run_op(&mut client, &view, most).await;
        assert!(
            matches!(&outcome, Outcome::Read(read) if read.content.len() == 2 << 20)
                || matches!(&outcome, Outcome::Error(_))
        );
        // Lists, globs and searches are cut to fit.
        let long = "n".repeat(200);
        for n in 0..2_000 {
            fs::write(runtime.workspace().join(format!("{n:04}-{long}")), "match\n").unwrap();
        }
        let wide = || {
            Op::List(ListOp {
                path: "/".into(),
                page_size: 10_000,
                ..Default::default()
            })
        };
        let ops = vec![wide(), wide(), wide(), wide(), wide(), wide(), wide(), wide(), wide()];
        let answer = client.file_ops(batch(&view, ops)).await.unwrap().into_inner();
        assert!(prost_size(&answer) <= ANSWER);
        let mut last = answer
            .results
            .iter()
            .rev()
            .map(|result| result.result.as_ref().unwrap());
        assert!(matches!(last.next(), Some(Outcome::NotRun(skipped)) if skipped.why() == Why::AnswerFull));
        let cut = answer.results.iter().any(
            |result| matches!(result.result.as_ref(), Some(Outcome::List(list)) if !list.next_page_token.is_empty()),
        );
        assert!(cut, "the list that did not fit goes on with another page");
    })
    .await;
}

fn prost_size(answer: &FileOpsResponse) -> usize {
    // The wire's own size, without a dependency on the encoder: content dominates, the rest is bounded by its text.
    answer
        .results
        .iter()
        .map(|result| match result.result.as_ref().unwrap() {
            Outcome::Read(read) => read.content.len(),
            Outcome::List(list) => list.entries.iter().map(|entry| entry.path.len() + 20).sum(),
            _ => 0,
        })
        .sum()
}

#[tokio::test]
async fn a_batch_id_runs_once_however_often_it_is_sent() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let root = runtime.workspace().join("root");
        fs::create_dir(&root).unwrap();
        let view = rooted(&root);
        let identified = |id: &str, ops| {
            let mut request = batch(&view, ops);
            request.batch_id = id.to_owned();
            request
        };
        let append = || vec![write_as("/log", "x", WriteMode::Append), read("/missing")];
        let first = send(&mut client, identified("once", append())).await;
        let second = send(&mut client, identified("once", append())).await;
        assert_eq!(first, second);
        assert_eq!(fs::read(root.join("log")).unwrap(), b"x");
        let status = client.file_ops(identified("once", vec![stat("/")])).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::BatchConflict);
        let status = client.file_ops(identified("not an id", vec![])).await.unwrap_err();
        assert_eq!(reason(&status), ErrorReason::InvalidArgument);

        // Twenty at once.
        let request = identified("many", vec![write_as("/many", "x", WriteMode::Append)]);
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let (mut client, request) = (client.clone(), request.clone());
                tokio::spawn(async move { send(&mut client, request).await })
            })
            .collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        assert_eq!(fs::read(root.join("many")).unwrap(), b"x");

        // The first caller goes away in the middle.
        let mut ops = vec![write_as("/left", "x", WriteMode::Append)];
        ops.extend((0..900).map(|n| write(format!("/left-{}", n % 10), vec![0; 2048])));
        ops.push(write_as("/left", "y", WriteMode::Append));
        let request = identified("left", ops);
        let first = tokio::spawn({
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.file_ops(request).await }
        });
        while !root.join("left").exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.abort();
        let answer = send(&mut client, request).await;
        assert_eq!(answer.len(), 902);
        assert!(answer.iter().all(|outcome| matches!(outcome, Outcome::Info(_))));
        assert_eq!(fs::read(root.join("left")).unwrap(), b"xy");

        // What a batch did to its own root does not change what it answers.
        let sandbox = FileView::default();
        let mut request = batch(&view, vec![write("/f", "")]);
        request.batch_id = "gone".into();
        let first = send(&mut client, request.clone()).await;
        run_op(&mut client, &sandbox, remove(shown(&root), true)).await;
        assert_eq!(send(&mut client, request).await, first);
        assert!(!root.exists());
    })
    .await;
}

#[tokio::test]
async fn paths_begin_at_the_root_of_the_view_or_the_working_directory() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        fs::create_dir_all(work.join("root/d")).unwrap();
        let virtual_view = rooted(&work.join("root"));
        let outcomes = run_ops(
            &mut client,
            &virtual_view,
            vec![write("/d/f", "a"), write("d/g", "b"), list("/", 5)],
        )
        .await;
        assert_eq!(info(outcomes[0].clone()).path, "/d/f");
        assert_eq!(info(outcomes[1].clone()).path, "/d/g");
        assert!(work.join("root/d/f").exists() && work.join("root/d/g").exists());
        let sandbox = FileView::default();
        let absolute = shown(&work.join("root/d/f"));
        let ops = vec![
            stat("root/d/f"),
            stat(&absolute),
            write("new", ""),
            glob("", "root/d/*"),
            grep("", "a"),
        ];
        let outcomes = run_ops(&mut client, &sandbox, ops).await;
        assert_eq!(info(outcomes[0].clone()).path, absolute);
        assert_eq!(info(outcomes[0].clone()), info(outcomes[1].clone()));
        assert!(work.join("new").exists());
        let Outcome::Glob(globbed) = &outcomes[3] else {
            panic!("{:?}", outcomes[3])
        };
        assert_eq!(globbed.entries[0].path, absolute);
        let Outcome::Grep(found) = &outcomes[4] else {
            panic!("{:?}", outcomes[4])
        };
        assert_eq!(found.files[0].path, absolute);
    })
    .await;
}

async fn pages(client: &mut Client, view: &FileView, depth: u32, page_size: u32) -> Vec<PathBuf> {
    let (mut paths, mut page_token) = (Vec::new(), String::new());
    loop {
        let op = Op::List(ListOp {
            path: "/".into(),
            depth,
            page_size,
            page_token,
            ..Default::default()
        });
        let outcome = run_op(client, view, op).await;
        let Outcome::List(page) = outcome else {
            panic!("{outcome:?}")
        };
        assert!(page.entries.len() <= page_size as usize);
        paths.extend(page.entries.iter().map(|entry| path_of(&entry.path, &entry.path_raw)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return paths;
        }
    }
}

#[tokio::test]
async fn lists_come_in_pages_and_lose_no_name() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let mut expected = BTreeSet::new();
        for n in 0..5_000_u32 {
            let mut name = match n % 5 {
                0 => b"d0/".to_vec(),
                1 => b"d0.x/".to_vec(),
                _ => Vec::new(),
            };
            name.extend_from_slice(format!("{n:04}").as_bytes());
            // Every byte that a name may hold, somewhere.
            let odd = (n % 256) as u8;
            if odd != 0 && odd != b'/' {
                name.push(odd);
            }
            let path = Path::new(OsStr::from_bytes(&name)).to_owned();
            fs::create_dir_all(work.join(path.parent().unwrap())).unwrap();
            fs::write(work.join(&path), "").unwrap();
            expected.insert(Path::new("/").join(path));
        }
        expected.extend(["/d0".into(), "/d0.x".into()]);
        let view = rooted(&work);
        for page_size in [97, 1_000, 10_000] {
            let listed = pages(&mut client, &view, 3, page_size).await;
            let by_bytes = |paths: &[PathBuf]| {
                paths
                    .iter()
                    .map(|path| path.as_os_str().as_bytes().to_vec())
                    .collect::<Vec<_>>()
            };
            assert!(by_bytes(&listed).is_sorted(), "sorted by path, bytewise");
            assert_eq!(listed.len(), expected.len(), "none twice");
            assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
        }
        let flat = pages(&mut client, &view, 0, 500).await;
        assert_eq!(flat.len(), 3_002);
        let bad = Op::List(ListOp {
            path: "/".into(),
            page_token: "no token".into(),
            ..Default::default()
        });
        assert_eq!(
            failed(&run_op(&mut client, &view, bad).await).reason(),
            ErrorReason::InvalidArgument
        );
    })
    .await;
}

#[tokio::test]
async fn windows_of_bytes_and_lines() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let view = rooted(&runtime.workspace());
        fs::write(runtime.workspace().join("f"), "zero\none\r\ntwo\nlast").unwrap();
        fs::write(runtime.workspace().join("b"), b"bin\0ary").unwrap();
        fs::write(runtime.workspace().join("e"), b"").unwrap();
        let window = |path: &str, window, max_bytes| {
            Op::Read(ReadOp {
                path: path.into(),
                window: Some(window),
                max_bytes,
                ..Default::default()
            })
        };
        let lines = |first, count, max| window("f", Window::Lines(LineWindow { first, count }), max);
        let bytes = |offset, length| window("f", Window::Bytes(ByteWindow { offset, length }), 0);
        let ops = vec![
            lines(1, 2, 0),
            lines(3, 0, 0),
            lines(9, 1, 0),
            lines(0, 0, 12),
            lines(0, 0, 2),
            bytes(5, 3),
            bytes(99, 1),
            read("b"),
            window("e", Window::Lines(LineWindow { first: 0, count: 0 }), 0),
        ];
        let outcomes = run_ops(&mut client, &view, ops).await;
        let facts = |at: usize| {
            let read = content(&outcomes[at]);
            let text = String::from_utf8_lossy(&read.content).into_owned();
            (
                text,
                read.offset,
                read.first_line,
                read.line_count,
                read.more_before,
                read.more_after,
            )
        };
        assert_eq!(facts(0), ("one\r\ntwo\n".into(), 5, 1, 2, true, true));
        assert_eq!(content(&outcomes[0]).total_lines, 4);
        assert_eq!(facts(1), ("last".into(), 14, 3, 1, true, false));
        let (text, _, _, count, before, after) = facts(2);
        assert_eq!((text.as_str(), count, before, after), ("", 0, true, false));
        assert_eq!(facts(3), ("zero\none\r\n".into(), 0, 0, 2, false, true));
        let (text, _, _, _, before, after) = facts(4);
        assert_eq!((text.as_str(), before, after), ("ze", false, true));
        assert_eq!(facts(5), ("one".into(), 5, 0, 0, true, true));
        let (text, _, _, _, before, after) = facts(6);
        assert_eq!((text.as_str(), before, after), ("", true, false));
        assert!(content(&outcomes[7]).binary && !content(&outcomes[5]).binary);
        assert_eq!(content(&outcomes[8]).total_lines, 0);
    })
    .await;
}

#[tokio::test]
async fn writes_and_edits_keep_what_they_should() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        fs::write(work.join("crlf"), "a\r\nb\r\nb\r\n").unwrap();
        fs::set_permissions(work.join("crlf"), fs::Permissions::from_mode(0o4750)).unwrap();
        std::os::unix::fs::chown(work.join("crlf"), Some(1234), Some(1234)).unwrap();
        fs::set_permissions(work.join("crlf"), fs::Permissions::from_mode(0o750)).unwrap();
        let all = Op::Edit(EditOp {
            path: "crlf".into(),
            old_text: Bytes::from_static(b"b\n"),
            new_text: Bytes::from_static(b"c\nd\n"),
            replace_all: true,
            ..Default::default()
        });
        let outcome = run_op(&mut client, &view, all).await;
        assert!(
            matches!(&outcome, Outcome::Edit(edit) if edit.replacements == 2),
            "{outcome:?}"
        );
        assert_eq!(fs::read(work.join("crlf")).unwrap(), b"a\r\nc\r\nd\r\nc\r\nd\r\n");
        let kept = fs::metadata(work.join("crlf")).unwrap();
        assert_eq!((kept.mode() & 0o7777, kept.uid(), kept.gid()), (0o750, 1234, 1234));
        let deep = Op::Write(WriteOp {
            path: "x/y/z".into(),
            content: Bytes::from_static(b"deep"),
            make_parents: true,
            mode: Some(0o601),
            ..Default::default()
        });
        assert_eq!(info(run_op(&mut client, &view, deep).await).mode, 0o601);
        let modified = Timestamp {
            seconds: 1_000_000_000,
            nanos: 123_456_789,
        };
        let old = Op::Touch(TouchOp {
            path: "x/y/z".into(),
            modified: Some(modified),
            ..Default::default()
        });
        assert_eq!(info(run_op(&mut client, &view, old).await).modified, Some(modified));
        let stale = FileVersion {
            version: Some(Version::Sha256(Bytes::from(vec![0; 32]))),
        };
        let guarded = Op::Write(WriteOp {
            path: "x/y/z".into(),
            expected: Some(stale),
            ..Default::default()
        });
        assert_eq!(
            failed(&run_op(&mut client, &view, guarded).await).reason(),
            ErrorReason::FileVersionMismatch
        );
        assert_eq!(fs::read(work.join("x/y/z")).unwrap(), b"deep");
    })
    .await;
}

#[tokio::test]
async fn searches_have_their_options() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        let view = rooted(&work);
        fs::create_dir_all(work.join("src/deep")).unwrap();
        for (name, text) in [
            ("src/a.rs", "before\nNeedle one\nafter\nneedle two\n"),
            ("src/deep/b.rs", "needle\n"),
            ("src/c.txt", "needle (x)\n"),
            (".hidden", "needle\n"),
            ("binary", "needle\0\n"),
            (".gitignore", "c.txt\n"),
        ] {
            fs::write(work.join(name), text).unwrap();
        }
        let search = |op: GrepOp| Op::Grep(GrepOp { path: "/".into(), ..op });
        let needle = || GrepOp {
            pattern: "needle".into(),
            ..Default::default()
        };
        let ops = vec![
            search(needle()),
            search(GrepOp {
                ignore_case: true,
                context: 1,
                include: vec!["a.rs".into()],
                ..needle()
            }),
            search(GrepOp {
                skip_hidden: true,
                honour_ignore_files: true,
                ..needle()
            }),
            search(GrepOp {
                pattern: "(x)".into(),
                literal: true,
                ..Default::default()
            }),
            search(GrepOp {
                max_total: 1,
                ..needle()
            }),
            search(GrepOp {
                exclude: vec!["src".into()],
                ..needle()
            }),
            glob("/", "src/**/*.rs"),
            glob("/src", "*"),
            glob("/", "*.{rs,txt}"),
        ];
        let outcomes = run_ops(&mut client, &view, ops).await;
        let found = |at: usize| match &outcomes[at] {
            Outcome::Grep(grep) => grep,
            other => panic!("{other:?}"),
        };
        let names = |at: usize| {
            found(at)
                .files
                .iter()
                .map(|file| file.path.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(0), ["/.hidden", "/src/a.rs", "/src/c.txt", "/src/deep/b.rs"]);
        assert_eq!((found(0).files_binary, found(0).files_unreadable), (1, 0));
        let lines: Vec<_> = found(1).files[0]
            .lines
            .iter()
            .map(|line| (line.number, line.context))
            .collect();
        assert_eq!(lines, [(1, true), (2, false), (3, true), (4, false)]);
        assert_eq!(names(2), ["/src/a.rs", "/src/deep/b.rs"]);
        assert_eq!(names(3), ["/src/c.txt"]);
        assert_eq!(
            (names(4).len(), found(4).truncated, found(0).truncated),
            (1, true, false)
        );
        assert_eq!(names(5), ["/.hidden"]);
        let globbed = |at: usize| match &outcomes[at] {
            Outcome::Glob(glob) => glob.entries.iter().map(|entry| entry.path.as_str()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(globbed(6), ["/src/a.rs", "/src/deep/b.rs"]);
        assert_eq!(globbed(7), ["/src/a.rs", "/src/c.txt", "/src/deep"]);
        assert!(globbed(8).is_empty());
    })
    .await;
}

async fn event(events: &mut Streaming<WatchFilesResponse>) -> FileEvent {
    loop {
        match events
            .message()
            .await
            .unwrap()
            .expect("the watch goes on")
            .message
            .unwrap()
        {
            watch_files_response::Message::Event(event) => return event,
            watch_files_response::Message::Heartbeat(_) => {}
        }
    }
}

/// Waits for an event, passing over what else the kernel tells of the same change.
async fn wait_for(events: &mut Streaming<WatchFilesResponse>, kind: Kind, path: &str) -> FileEvent {
    loop {
        let event = event(events).await;
        assert_ne!(event.kind(), Kind::Overflow);
        if event.kind() == kind && event.path == path {
            return event;
        }
    }
}

#[tokio::test]
async fn a_watch_tells_what_changes() {
    within(async {
        let runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let work = runtime.workspace();
        fs::create_dir_all(work.join("w/old")).unwrap();
        let request = |recursive| WatchFilesRequest {
            view: Some(rooted(&work)),
            path: "/w".into(),
            recursive,
            ..Default::default()
        };
        let mut deep = client.watch_files(request(true)).await.unwrap().into_inner();
        let mut flat = client.watch_files(request(false)).await.unwrap().into_inner();
        for events in [&mut deep, &mut flat] {
            assert_eq!(event(events).await.kind(), Kind::Watching);
        }
        fs::write(work.join("w/f"), "").unwrap();
        wait_for(&mut deep, Kind::Created, "/w/f").await;
        fs::write(work.join("w/f"), "more").unwrap();
        wait_for(&mut deep, Kind::Modified, "/w/f").await;
        fs::rename(work.join("w/f"), work.join("w/old/g")).unwrap();
        let moved = wait_for(&mut deep, Kind::Moved, "/w/old/g").await;
        assert_eq!((moved.moved_from.as_str(), moved.directory), ("/w/f", false));
        fs::remove_file(work.join("w/old/g")).unwrap();
        wait_for(&mut deep, Kind::Deleted, "/w/old/g").await;
        // Directories that are made are watched too, with what is in them before the watch is there.
        fs::create_dir_all(work.join("w/new/a/b")).unwrap();
        fs::write(work.join("w/new/a/b/f"), "").unwrap();
        assert!(wait_for(&mut deep, Kind::Created, "/w/new").await.directory);
        wait_for(&mut deep, Kind::Created, "/w/new/a/b/f").await;
        fs::write(work.join("w/new/a/late"), "").unwrap();
        wait_for(&mut deep, Kind::Created, "/w/new/a/late").await;
        fs::rename(work.join("w/new"), work.join("w/renamed")).unwrap();
        wait_for(&mut deep, Kind::Moved, "/w/renamed").await;
        fs::write(work.join("w/renamed/a/later"), "").unwrap();
        wait_for(&mut deep, Kind::Created, "/w/renamed/a/later").await;
        let raw = OsStr::from_bytes(b"\xff");
        fs::write(work.join("w").join(raw), "").unwrap();
        loop {
            let event = event(&mut deep).await;
            if event.kind() == Kind::Created && event.path_raw == Bytes::from_static(b"/w/\xff") {
                break;
            }
        }
        // Our own operations are seen as well.
        run_op(&mut client, &rooted(&work), write("/w/op", "x")).await;
        wait_for(&mut deep, Kind::Created, "/w/op").await;
        fs::rename(work.join("w/op"), work.join("out")).unwrap();
        wait_for(&mut deep, Kind::Deleted, "/w/op").await;
        // A flat watch knows nothing of what is deeper.
        let mut seen = Vec::new();
        while seen
            .last()
            .is_none_or(|event: &FileEvent| event.kind() != Kind::Deleted || event.path != "/w/op")
        {
            seen.push(event(&mut flat).await);
        }
        for event in &seen {
            assert!(
                event.path.matches('/').count() <= 2 && event.moved_from.matches('/').count() <= 2,
                "{event:?}"
            );
        }
        fs::remove_dir_all(work.join("w")).unwrap();
        wait_for(&mut deep, Kind::RootGone, "/w").await;
        assert!(deep.message().await.unwrap().is_none(), "the stream ends");
        let gone = client.watch_files(request(true)).await.unwrap_err();
        assert_eq!(reason(&gone), ErrorReason::FileNotFound);
    })
    .await;
}
