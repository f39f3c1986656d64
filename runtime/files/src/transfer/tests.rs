//! What more than one part of a transfer has a share in.

use std::{
    ffi::OsStr,
    fs::{self, create_dir, create_dir_all, read_dir, symlink_metadata, write},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use sandgate_proto::{
    runtime::v1::{
        DownloadEntry, DownloadPath, DownloadRequest, DownloadSummary, FileError, FileType, FileView, TransferFormat,
        UploadEntry, UploadEntryEnd, UploadResponse, UploadStart, download_response, upload_request::Message,
    },
    v1::ErrorReason,
};
use tempfile::TempDir;

use super::*;
use crate::{
    atomic::Shared,
    error::Result,
    view::{Defaults, View},
};

/// A root with a file beside it that nothing may touch.
pub(super) struct Fixture {
    outside: TempDir,
    pub(super) view: View,
    pub(super) shared: Shared,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let outside = TempDir::new().unwrap();
        create_dir(outside.path().join("root")).unwrap();
        write(outside.path().join("canary"), "canary").unwrap();
        let view = open_view(&outside.path().join("root"));
        let shared = Shared::default();
        Self { outside, view, shared }
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.outside.path().join("root").join(path)
    }

    pub(super) fn outside(&self) -> &Path {
        self.outside.path()
    }

    pub(super) fn assert_canary(&self) {
        let mut names: Vec<_> = read_dir(self.outside.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["canary", "root"]);
        let canary = self.outside.path().join("canary");
        assert_eq!(fs::read(&canary).unwrap(), b"canary");
        assert_eq!(fs::metadata(&canary).unwrap().nlink(), 1);
    }

    pub(super) fn upload(
        &self,
        format: TransferFormat,
        directory: &str,
        messages: Vec<Result<Message>>,
    ) -> Result<UploadResponse> {
        let start = UploadStart {
            format: format.into(),
            directory: directory.to_owned(),
            ..UploadStart::default()
        };
        upload(&self.view, &start, &self.shared, messages.into_iter())
    }

    pub(super) fn files(&self, messages: Vec<Message>) -> Result<UploadResponse> {
        self.upload(TransferFormat::Files, "", messages.into_iter().map(Ok).collect())
    }

    pub(super) fn download(&self, format: TransferFormat, paths: Vec<DownloadPath>) -> Vec<download_response::Message> {
        let request = DownloadRequest {
            view: None,
            paths,
            format: format.into(),
        };
        let mut messages = Vec::new();
        download(&self.view, &request, &mut |message| {
            messages.push(message);
            true
        })
        .unwrap();
        messages
    }
}

pub(super) fn open_view(root: &Path) -> View {
    let proto = FileView {
        root_dir: root.to_str().unwrap().to_owned(),
        ..FileView::default()
    };
    let cwd = PathBuf::from("/");
    View::open(&proto, &Defaults { user: None, cwd }).unwrap()
}

pub(super) fn entry(path: &str) -> UploadEntry {
    UploadEntry {
        path: path.to_owned(),
        ..UploadEntry::default()
    }
}

pub(super) fn end() -> Message {
    Message::EntryEnd(UploadEntryEnd::default())
}

pub(super) fn chunk(bytes: &[u8]) -> Message {
    Message::Chunk(Bytes::copy_from_slice(bytes))
}

pub(super) fn wanted(path: &str) -> DownloadPath {
    DownloadPath {
        path: path.to_owned(),
        ..DownloadPath::default()
    }
}

pub(super) fn failures(response: &UploadResponse) -> Vec<(String, ErrorReason)> {
    let errors = response.failures.iter().map(|failure| failure.error.clone().unwrap());
    errors
        .map(|error: FileError| (error.path.clone(), error.reason()))
        .collect()
}

fn set_time(path: &Path, seconds: i64, nanos: i64) {
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

/// Everything that a transfer shall keep, of a whole tree.
fn facts(root: &Path) -> Vec<(PathBuf, u32, i64, i64, Vec<u8>)> {
    let mut facts = Vec::new();
    let mut stack = vec![root.to_owned()];
    while let Some(path) = stack.pop() {
        let metadata = symlink_metadata(&path).unwrap();
        let content = if metadata.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else if metadata.is_file() {
            fs::read(&path).unwrap()
        } else {
            stack.extend(read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        };
        let relative = path.strip_prefix(root).unwrap().to_owned();
        facts.push((
            relative,
            metadata.mode(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            content,
        ));
    }
    facts.sort();
    facts
}

fn make_tree(root: &Path) {
    create_dir_all(root.join("a/read-only/deep")).unwrap();
    create_dir(root.join("empty")).unwrap();
    write(root.join("a/f"), "content").unwrap();
    write(root.join("a/nothing"), "").unwrap();
    write(root.join("a/read-only/deep/f"), vec![7; 300_000]).unwrap();
    write(root.join("exact"), vec![1; 512]).unwrap();
    write(root.join(OsStr::from_bytes(b"\xff\xfe")), "odd").unwrap();
    write(root.join(" name\nwith \"all\" "), "").unwrap();
    let long = root.join("d".repeat(120));
    create_dir(&long).unwrap();
    write(long.join("n".repeat(200)), "long").unwrap();
    let mut odd = b"\xff".repeat(150);
    write(long.join(OsStr::from_bytes(&odd)), "long and odd").unwrap();
    symlink("a/f", root.join("link")).unwrap();
    symlink("/nowhere/at/all", root.join("dangling")).unwrap();
    odd.extend_from_slice(b"/x");
    symlink(OsStr::from_bytes(&odd), root.join("odd link")).unwrap();
    symlink("t".repeat(150), root.join("long link")).unwrap();
    fs::set_permissions(root.join("a/f"), fs::Permissions::from_mode(0o4751)).unwrap();
    set_time(&root.join("a/f"), 1_000_000_000, 123_456_789);
    set_time(&root.join("exact"), -5, 250_000_000);
    set_time(&root.join("link"), 1_111_111_111, 0);
    fs::set_permissions(root.join("a/read-only"), fs::Permissions::from_mode(0o555)).unwrap();
    set_time(&root.join("a/read-only/deep"), 1_200_000_000, 1);
    set_time(&root.join("a/read-only"), 1_300_000_000, 0);
    set_time(&root.join("a"), 1_400_000_000, 999_999_999);
}

fn reuploaded(messages: Vec<download_response::Message>, from: &str, to: &str) -> Vec<Message> {
    let mut upload = Vec::new();
    for message in messages {
        match message {
            download_response::Message::Entry(DownloadEntry { info: Some(info), .. }) => {
                let regular = info.r#type() == FileType::Regular;
                let raw = info.path_raw.strip_prefix(from.as_bytes());
                upload.push(Message::Entry(UploadEntry {
                    path: info
                        .path
                        .strip_prefix(from)
                        .map(|rest| format!("{to}{rest}"))
                        .unwrap_or_default(),
                    path_raw: raw
                        .map(|rest| [to.as_bytes(), rest].concat().into())
                        .unwrap_or_default(),
                    r#type: info.r#type,
                    mode: Some(info.mode),
                    modified: info.modified,
                    size: regular.then_some(info.size),
                    symlink_target: info.symlink_target,
                    symlink_target_raw: info.symlink_target_raw,
                }));
                if !regular {
                    upload.push(end());
                }
            }
            download_response::Message::Chunk(bytes) => upload.push(Message::Chunk(bytes)),
            download_response::Message::EntryEnd(end) => {
                upload.push(Message::EntryEnd(UploadEntryEnd { sha256: end.sha256 }));
            }
            download_response::Message::Summary(summary) => assert_eq!(summary.failures, 0),
            other => unreachable!("{other:?}"),
        }
    }
    upload
}

#[test]
fn files_come_back_as_they_went() {
    let fixture = Fixture::new();
    create_dir(fixture.at("from")).unwrap();
    make_tree(&fixture.at("from"));
    let messages = fixture.download(TransferFormat::Files, vec![wanted("/from")]);
    for message in &messages {
        if let download_response::Message::Chunk(bytes) = message {
            assert!(bytes.len() <= CHUNK);
        }
    }
    let response = fixture.files(reuploaded(messages, "/from", "/to")).unwrap();
    assert_eq!(failures(&response), []);
    assert_eq!(facts(&fixture.at("to")), facts(&fixture.at("from")));
    assert_eq!(response.entries, facts(&fixture.at("from")).len() as u64);
}

#[test]
fn a_tar_comes_back_as_it_went() {
    let fixture = Fixture::new();
    create_dir(fixture.at("from")).unwrap();
    make_tree(&fixture.at("from"));
    let messages = fixture.download(TransferFormat::Tar, vec![wanted("/from")]);
    let mut upload = Vec::new();
    let mut summary = None;
    for message in messages {
        match message {
            download_response::Message::Chunk(bytes) => upload.push(Ok(Message::Chunk(bytes))),
            download_response::Message::Summary(last) => summary = Some(last),
            other => unreachable!("{other:?}"),
        }
    }
    let all = facts(&fixture.at("from"));
    let bytes = all
        .iter()
        .filter(|fact| fact.1 & 0o170_000 == 0o100_000)
        .map(|fact| fact.4.len() as u64)
        .sum();
    let entries = all.len() as u64;
    assert_eq!(
        summary,
        Some(DownloadSummary {
            entries,
            bytes,
            failures: 0
        })
    );
    let response = fixture.upload(TransferFormat::Tar, "/to", upload).unwrap();
    assert_eq!(
        (failures(&response), response.entries, response.bytes),
        (vec![], entries, bytes)
    );
    assert_eq!(facts(&fixture.at("to/from")), all);
}
