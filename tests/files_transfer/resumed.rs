//! Transfers that go on: downloads from an offset, uploads in chunks.

use super::*;

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
            ..file_at("/dir/f")
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
        up.entry = file_at("/large");
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
