use std::{
    fs::{self, create_dir, read_dir, symlink_metadata, write},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use bytes::Bytes;
use prost_types::Timestamp;
use sandgate_proto::runtime::v1::UploadEntryEnd;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::{
    super::tests::{Fixture, chunk, end, entry, failures, open_view},
    *,
};

#[test]
fn an_upload_replaces_and_keeps_modes() {
    let fixture = Fixture::new();
    write(fixture.at("f"), "old").unwrap();
    fs::set_permissions(fixture.at("f"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("f", fixture.at("link")).unwrap();
    let modified = Some(Timestamp { seconds: 5, nanos: 6 });
    let response = fixture
        .files(vec![
            Message::Entry(UploadEntry {
                modified,
                ..entry("link")
            }),
            chunk(b"ne"),
            chunk(b"w"),
            end(),
            Message::Entry(entry("deep/er/g")),
            end(),
        ])
        .unwrap();
    assert_eq!((response.entries, response.bytes, response.failures_total), (2, 3, 0));
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"new");
    let metadata = fs::metadata(fixture.at("f")).unwrap();
    assert_eq!(
        (metadata.mode() & 0o7777, metadata.mtime(), metadata.mtime_nsec()),
        (0o700, 5, 6)
    );
    assert!(symlink_metadata(fixture.at("link")).unwrap().is_symlink());
    assert_eq!(fs::metadata(fixture.at("deep/er/g")).unwrap().mode() & 0o7777, 0o644);
}

#[test]
fn a_bad_entry_fails_alone() {
    let fixture = Fixture::new();
    create_dir(fixture.at("dir")).unwrap();
    write(fixture.at("file"), "old").unwrap();
    let sha256 = |text: &str| Bytes::copy_from_slice(&Sha256::digest(text));
    let sized = |size| {
        Message::Entry(UploadEntry {
            size: Some(size),
            ..entry("file")
        })
    };
    let typed = |path: &str, kind: FileType| {
        Message::Entry(UploadEntry {
            r#type: kind.into(),
            ..entry(path)
        })
    };
    let response = fixture
        .files(vec![
            Message::Entry(entry("dir")),
            chunk(b"x"),
            chunk(b"y"),
            end(),
            Message::Entry(entry("file/below")),
            chunk(b"x"),
            end(),
            Message::Entry(entry("a\0b")),
            chunk(b"x"),
            end(),
            sized(2),
            chunk(b"xyz"),
            chunk(b"more"),
            end(),
            sized(4),
            chunk(b"xyz"),
            end(),
            Message::Entry(entry("file")),
            chunk(b"xyz"),
            Message::EntryEnd(UploadEntryEnd {
                sha256: sha256("other"),
            }),
            typed("fifo", FileType::Fifo),
            end(),
            typed("no target", FileType::Symlink),
            end(),
            typed("with content", FileType::Directory),
            chunk(b"x"),
            end(),
            Message::Entry(UploadEntry {
                mode: Some(0o10000),
                ..entry("mode")
            }),
            end(),
            Message::Entry(entry("good")),
            chunk(b"xyz"),
            Message::EntryEnd(UploadEntryEnd { sha256: sha256("xyz") }),
        ])
        .unwrap();
    let expected = [
        ("/dir", ErrorReason::FileIsDirectory),
        ("/file/below", ErrorReason::FileNotDirectory),
        ("a\0b", ErrorReason::PathInvalid),
        ("/file", ErrorReason::HashMismatch),
        ("/file", ErrorReason::HashMismatch),
        ("/file", ErrorReason::HashMismatch),
        ("/fifo", ErrorReason::InvalidArgument),
        ("/no target", ErrorReason::PathInvalid),
        ("/with content", ErrorReason::InvalidArgument),
        ("/mode", ErrorReason::InvalidArgument),
    ];
    assert_eq!(
        failures(&response),
        expected.map(|(path, reason)| (path.to_owned(), reason))
    );
    assert_eq!((response.entries, response.failures_total), (1, 10));
    assert_eq!(fs::read(fixture.at("file")).unwrap(), b"old");
    assert_eq!(fs::read(fixture.at("good")).unwrap(), b"xyz");
}

#[test]
fn a_cut_upload_leaves_what_was_there() {
    let fixture = Fixture::new();
    write(fixture.at("f"), "old").unwrap();
    for path in ["f", "new"] {
        let cut = Err(Error::new(ErrorReason::Stopping, "cut"));
        let messages = vec![Ok(Message::Entry(entry(path))), Ok(chunk(&[1; 100_000])), cut];
        let error = fixture.upload(TransferFormat::Files, "", messages).unwrap_err();
        assert_eq!(error.reason, ErrorReason::Stopping);
        let error = fixture
            .files(vec![Message::Entry(entry(path)), chunk(b"x")])
            .unwrap_err();
        assert_eq!(error.reason, ErrorReason::InvalidArgument);
    }
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"old");
    assert_eq!(read_dir(fixture.at("")).unwrap().count(), 1);
}

#[test]
fn messages_have_an_order() {
    let fixture = Fixture::new();
    for messages in [
        vec![chunk(b"x")],
        vec![end()],
        vec![Message::Start(UploadStart::default())],
        vec![Message::Entry(entry("a")), Message::Entry(entry("b"))],
    ] {
        assert_eq!(
            fixture.files(messages).unwrap_err().reason,
            ErrorReason::InvalidArgument
        );
    }
    assert_eq!(read_dir(fixture.at("")).unwrap().count(), 0);
}

#[test]
fn failures_are_counted_and_not_all_listed() {
    let fixture = Fixture::new();
    create_dir(fixture.at("d")).unwrap();
    let messages = (0..1500).flat_map(|_| [Message::Entry(entry("d")), end()]).collect();
    let response = fixture.files(messages).unwrap();
    assert_eq!((response.failures.len(), response.failures_total), (1000, 1500));
    let long = "x/".repeat(2000);
    let messages = (0..1000)
        .flat_map(|_| [Message::Entry(entry(&format!("{long}\0"))), end()])
        .collect();
    let response = fixture.files(messages).unwrap();
    assert!(response.failures.len() < 1000 && prost::Message::encoded_len(&response) < 3 << 20);
}

#[test]
fn a_full_disk_fails_the_entry_and_loses_nothing() {
    // /dev/full is a disk without room.
    let full = Error::from(std::io::Error::from(Errno::NOSPC));
    assert_eq!(full.reason, ErrorReason::DiskFull);
    let outside = TempDir::new().unwrap();
    if rustix::fs::symlink("/dev/full", outside.path().join("full")).is_err() || !Path::new("/dev/full").exists() {
        return;
    }
    let view = open_view(Path::new("/"));
    let path = outside.path().join("full");
    let good = outside.path().join("good");
    let messages = vec![
        Ok(Message::Entry(entry(path.to_str().unwrap()))),
        Ok(chunk(b"x")),
        Ok(end()),
        Ok(Message::Entry(entry(good.to_str().unwrap()))),
        Ok(chunk(b"x")),
        Ok(end()),
    ];
    let response = upload(&view, &UploadStart::default(), &Shared::default(), messages.into_iter()).unwrap();
    assert_eq!(
        failures(&response),
        [(path.to_str().unwrap().to_owned(), ErrorReason::DiskFull)]
    );
    assert_eq!(fs::read(good).unwrap(), b"x");
}
