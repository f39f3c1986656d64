use std::fs::{self, read_dir};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{super::tests::Fixture, *};

fn request(id: &str, offset: u64, data: &str, finish: bool) -> WriteChunkRequest {
    WriteChunkRequest {
        upload_id: id.to_owned(),
        entry: Some(UploadEntry {
            path: "f".to_owned(),
            mode: Some(0o600),
            ..UploadEntry::default()
        }),
        offset,
        data: Bytes::copy_from_slice(data.as_bytes()),
        finish,
        ..WriteChunkRequest::default()
    }
}

#[test]
fn chunks_that_come_twice_are_written_once() {
    let fixture = Fixture::new();
    fs::write(fixture.at("f"), "old").unwrap();
    let uploads = ChunkedUploads::default();
    let write = |request: &WriteChunkRequest| uploads.write(&fixture.view, request, &fixture.shared);
    let accepted = |request: &WriteChunkRequest| write(request).unwrap().accepted;
    assert_eq!(accepted(&request("u", 0, "abc", false)), 3);
    assert_eq!(accepted(&request("u", 0, "abc", false)), 3);
    assert_eq!(accepted(&request("u", 3, "def", false)), 6);
    assert_eq!(accepted(&request("u", 0, "abc", false)), 6);
    assert_eq!(accepted(&request("u", 2, "cdefgh", false)), 8);
    assert_eq!(
        write(&request("u", 9, "x", false)).unwrap_err().reason,
        ErrorReason::UploadGap
    );
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"old");
    let mut last = request("u", 8, "i", true);
    last.sha256 = Bytes::copy_from_slice(&Sha256::digest("abcdefghi"));
    let first = write(&last).unwrap();
    assert_eq!(
        (
            first.accepted,
            first.info.as_ref().unwrap().size,
            first.info.as_ref().unwrap().mode
        ),
        (9, 9, 0o600)
    );
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"abcdefghi");
    fs::write(fixture.at("f"), "changed since").unwrap();
    assert_eq!(write(&last).unwrap(), first);
    assert_eq!(write(&request("u", 0, "abc", false)).unwrap(), first);
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"changed since");
    let mut other = last.clone();
    other.entry.as_mut().unwrap().path = "g".to_owned();
    assert_eq!(write(&other).unwrap_err().reason, ErrorReason::InvalidArgument);
}

#[test]
fn a_wrong_hash_or_size_ends_the_upload() {
    let fixture = Fixture::new();
    let uploads = ChunkedUploads::default();
    let write = |request: &WriteChunkRequest| uploads.write(&fixture.view, request, &fixture.shared);
    let mut wrong = request("u", 0, "abc", true);
    wrong.sha256 = Bytes::from_static(&[0; 32]);
    assert_eq!(write(&wrong).unwrap_err().reason, ErrorReason::HashMismatch);
    assert_eq!(
        write(&request("u", 3, "", true)).unwrap_err().reason,
        ErrorReason::UploadNotFound
    );
    let mut short = request("v", 0, "abc", true);
    short.entry.as_mut().unwrap().size = Some(4);
    assert_eq!(write(&short).unwrap_err().reason, ErrorReason::HashMismatch);
    assert_eq!(read_dir(fixture.at("")).unwrap().count(), 0);
    assert_eq!(write(&request("u", 0, "", true)).unwrap().info.unwrap().size, 0);
}

#[test]
fn requests_are_checked() {
    let fixture = Fixture::new();
    let uploads = ChunkedUploads::default();
    let reason = |request: &WriteChunkRequest| {
        uploads
            .write(&fixture.view, request, &fixture.shared)
            .unwrap_err()
            .reason
    };
    assert_eq!(reason(&request("u", 5, "x", false)), ErrorReason::UploadNotFound);
    for id in ["", "a/b", "a b", &"x".repeat(65)] {
        assert_eq!(
            reason(&request(id, 0, "x", false)),
            ErrorReason::InvalidArgument,
            "{id}"
        );
    }
    let mut directory = request("u", 0, "", true);
    directory.entry.as_mut().unwrap().r#type = FileType::Directory.into();
    assert_eq!(reason(&directory), ErrorReason::InvalidArgument);
    let mut none = request("u", 0, "", true);
    none.entry = None;
    assert_eq!(reason(&none), ErrorReason::InvalidArgument);
    let mut large = request("u", 0, "", false);
    large.data = Bytes::from(vec![0; MAX_DATA + 1]);
    assert_eq!(reason(&large), ErrorReason::InvalidArgument);
}

#[test]
fn few_are_open_and_idle_ones_are_dropped() {
    let fixture = Fixture::new();
    let uploads = ChunkedUploads::default();
    let start = Instant::now();
    let write = |id: &str, offset, now| {
        let request = request(id, offset, "x", false);
        uploads
            .write_at(&fixture.view, &request, &fixture.shared, now)
            .map_err(|error| error.reason)
    };
    for number in 0..MAX_OPEN {
        write(&number.to_string(), 0, start).unwrap();
    }
    assert_eq!(write("more", 0, start).unwrap_err(), ErrorReason::LimitReached);
    let later = start + IDLE / 2;
    assert_eq!(write("0", 1, later).unwrap().accepted, 2);
    let after = start + IDLE;
    assert_eq!(write("1", 1, after).unwrap_err(), ErrorReason::UploadNotFound);
    assert_eq!(write("0", 2, after).unwrap().accepted, 3);
    assert_eq!(uploads.lock().open.len(), 1);
    assert_eq!(read_dir(fixture.at("")).unwrap().count(), 0);
}

#[test]
fn only_the_last_finished_ones_are_known() {
    let fixture = Fixture::new();
    let uploads = ChunkedUploads::default();
    let write = |request: &WriteChunkRequest| uploads.write(&fixture.view, request, &fixture.shared);
    for number in 0..=MAX_FINISHED {
        write(&request(&number.to_string(), 0, "x", true)).unwrap();
    }
    assert_eq!(
        write(&request("0", 1, "", true)).unwrap_err().reason,
        ErrorReason::UploadNotFound
    );
    assert_eq!(write(&request("1", 1, "", true)).unwrap().accepted, 1);
}

#[test]
fn two_callers_of_one_upload_do_not_mix() {
    let fixture = Fixture::new();
    let uploads = ChunkedUploads::default();
    let data: String = (0..200).map(|number| format!("{number:05}")).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in (0..data.len()).step_by(100) {
                    let chunk = request("u", at as u64, &data[at..at + 100], at + 100 == data.len());
                    uploads.write(&fixture.view, &chunk, &fixture.shared).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read(fixture.at("f")).unwrap(), data.as_bytes());
}
