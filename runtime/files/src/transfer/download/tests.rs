use std::{
    fs::{create_dir, write},
    os::unix::fs::symlink,
};

use rustix::fs::{CWD, mknodat};
use sandgate_proto::runtime::v1::{FileVersion, file_version::Version};

use super::{
    super::tests::{Fixture, chunk, wanted},
    *,
};

#[test]
fn a_download_resumes_where_it_was() {
    let fixture = Fixture::new();
    let content: Vec<u8> = (0..200_000_u32).map(|number| number as u8).collect();
    write(fixture.at("f"), &content).unwrap();
    let version = |text: &[u8]| FileVersion {
        version: Some(Version::Sha256(Bytes::copy_from_slice(&Sha256::digest(text)))),
    };
    let resumed = |offset, expected| DownloadPath {
        offset,
        expected,
        ..wanted("f")
    };
    let messages = fixture.download(TransferFormat::Files, vec![resumed(150_000, Some(version(&content)))]);
    let mut received = Vec::new();
    for message in messages {
        match message {
            Message::Entry(entry) => {
                assert_eq!((entry.offset, entry.info.unwrap().size), (150_000, 200_000));
            }
            Message::Chunk(bytes) => received.extend_from_slice(&bytes),
            Message::EntryEnd(end) => {
                assert_eq!(end.sha256.as_ref(), Sha256::digest(&content[150_000..]).as_slice());
                assert_eq!(end.size, 50_000);
            }
            Message::Summary(summary) => assert_eq!((summary.entries, summary.bytes), (1, 50_000)),
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(received, content[150_000..]);
    create_dir(fixture.at("d")).unwrap();
    mknodat(
        CWD,
        fixture.at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    symlink("../canary", fixture.at("out")).unwrap();
    let table = [
        (resumed(1, Some(version(b"other"))), ErrorReason::FileVersionMismatch),
        (resumed(200_001, None), ErrorReason::InvalidArgument),
        (
            DownloadPath {
                offset: 1,
                ..wanted("d")
            },
            ErrorReason::FileIsDirectory,
        ),
        (wanted("none"), ErrorReason::FileNotFound),
        (wanted("fifo"), ErrorReason::FileNotRegular),
        (wanted("out"), ErrorReason::FileNotFound),
        (wanted(""), ErrorReason::PathInvalid),
    ];
    for (path, reason) in table {
        let messages = fixture.download(TransferFormat::Files, vec![path]);
        let [Message::Failure(failure), Message::Summary(summary)] = &messages[..] else {
            unreachable!("{messages:?}")
        };
        assert_eq!(failure.error.as_ref().unwrap().reason(), reason);
        assert_eq!((summary.entries, summary.failures), (0, 1));
    }
}

#[test]
fn what_can_not_be_sent_is_a_failure_among_others() {
    let fixture = Fixture::new();
    create_dir(fixture.at("d")).unwrap();
    write(fixture.at("d/a"), "a").unwrap();
    write(fixture.at("d/z"), "z").unwrap();
    mknodat(
        CWD,
        fixture.at("d/fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for format in [TransferFormat::Files, TransferFormat::Tar] {
        let messages = fixture.download(format, vec![wanted("d")]);
        let failures = messages.iter().filter(|message| matches!(message, Message::Failure(_)));
        assert_eq!(failures.count(), 1);
        let Some(Message::Summary(summary)) = messages.last() else {
            unreachable!()
        };
        assert_eq!((summary.entries, summary.bytes, summary.failures), (3, 2, 1));
    }
}

#[test]
fn a_file_that_shrinks_fails_and_a_tar_stays_whole() {
    for format in [TransferFormat::Files, TransferFormat::Tar] {
        let fixture = Fixture::new();
        create_dir(fixture.at("d")).unwrap();
        write(fixture.at("d/f"), vec![1; 10 * CHUNK]).unwrap();
        write(fixture.at("d/g"), "whole").unwrap();
        let request = DownloadRequest {
            view: None,
            paths: vec![wanted("d")],
            format: format.into(),
        };
        let (mut failed, mut bytes, mut summary) = (Vec::new(), Vec::new(), None);
        download(&fixture.view, &request, &mut |message| {
            match message {
                Message::Chunk(chunk) => {
                    // The first chunk is on its way; the file is cut behind it.
                    if bytes.is_empty() {
                        let file = File::options().write(true).open(fixture.at("d/f")).unwrap();
                        file.set_len(3 * CHUNK as u64).unwrap();
                    }
                    bytes.extend_from_slice(&chunk);
                }
                Message::Failure(failure) => failed.push(failure.error.unwrap()),
                Message::Summary(last) => summary = Some(last),
                _ => {}
            }
            true
        })
        .unwrap();
        assert_eq!(failed.len(), 1);
        assert_eq!(
            (failed[0].path.as_str(), failed[0].reason()),
            ("/d/f", ErrorReason::FileIo)
        );
        assert_eq!(summary.unwrap().entries, 2);
        if format == TransferFormat::Tar {
            let response = fixture.upload(format, "/to", vec![Ok(chunk(&bytes))]).unwrap();
            assert_eq!((response.entries, response.failures_total), (3, 0));
            assert_eq!(std::fs::read(fixture.at("to/d/g")).unwrap(), b"whole");
        }
    }
}

#[test]
fn a_download_that_nobody_takes_ends() {
    let fixture = Fixture::new();
    write(fixture.at("f"), vec![1; 10 * CHUNK]).unwrap();
    let request = DownloadRequest {
        paths: vec![wanted("f")],
        ..DownloadRequest::default()
    };
    let mut taken = 0;
    download(&fixture.view, &request, &mut |_| {
        taken += 1;
        taken < 3
    })
    .unwrap();
    assert_eq!(taken, 3);
    let many = DownloadRequest {
        paths: vec![wanted("f"); 1001],
        ..DownloadRequest::default()
    };
    assert_eq!(
        download(&fixture.view, &many, &mut |_| true).unwrap_err().reason,
        ErrorReason::InvalidArgument
    );
    let tar = DownloadRequest {
        paths: vec![DownloadPath {
            offset: 1,
            ..wanted("f")
        }],
        format: TransferFormat::Tar.into(),
        view: None,
    };
    assert_eq!(
        download(&fixture.view, &tar, &mut |_| true).unwrap_err().reason,
        ErrorReason::InvalidArgument
    );
}
