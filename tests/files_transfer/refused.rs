//! Bad entries fail alone; messages and archives that make no sense are refused.

use super::*;

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
            (
                ended(file_at("/old"), b"new", &[7; 32]),
                ErrorReason::HashMismatch,
                "/old",
            ),
            (
                ended(file_at("/old"), b"new", b"short"),
                ErrorReason::HashMismatch,
                "/old",
            ),
            (
                ended(
                    UploadEntry {
                        size: Some(4),
                        ..file_at("/old")
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
                        ..file_at("/old")
                    },
                    b"new",
                    b"",
                ),
                ErrorReason::HashMismatch,
                "/old",
            ),
            (
                ended(file_at("/dir"), b"new", b""),
                ErrorReason::FileIsDirectory,
                "/dir",
            ),
            (
                ended(file_at("/old/x"), b"new", b""),
                ErrorReason::FileNotDirectory,
                "/old/x",
            ),
            (
                ended(
                    UploadEntry {
                        r#type: FileType::Fifo.into(),
                        ..file_at("/fifo")
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
                        ..file_at("/mode")
                    },
                    b"",
                    b"",
                ),
                ErrorReason::InvalidArgument,
                "/mode",
            ),
            (ended(file_at("/nul\0"), b"", b""), ErrorReason::PathInvalid, "/nul\0"),
        ];
        let mut messages = Vec::new();
        for (n, (case, ..)) in cases.iter().enumerate() {
            messages.extend(case.clone());
            messages.extend(ended(file_at(&format!("/good-{n}")), b"new", &good));
        }
        let start = upload_start(&rooted(&work));
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
        let start = || upload_start(&view);
        let end = || Message::EntryEnd(UploadEntryEnd::default());
        for messages in [
            vec![Message::Start(start())],
            vec![Message::Chunk(Bytes::from_static(b"x"))],
            vec![end()],
            vec![Message::Entry(file_at("/a")), Message::Entry(file_at("/b"))],
            vec![Message::Entry(file_at("/a"))],
        ] {
            let status = upload(&mut client, start(), messages.clone()).await.unwrap_err();
            assert_eq!(reason(&status), ErrorReason::InvalidArgument, "{messages:?}");
        }
        let requests = vec![UploadRequest {
            message: Some(Message::Entry(file_at("/a"))),
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
