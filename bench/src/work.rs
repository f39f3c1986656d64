//! The work that is measured, the same for the runtime and for the floor.

use std::process::Command;

use bytes::Bytes;
use futures_util::stream;
use sandgate_proto::runtime::v1::{
    DownloadPath, DownloadRequest, ExecRequest, ExecSpec, ExecStart, FileOp, FileOpsRequest, OnFull, ReadOp,
    UploadEntry, UploadEntryEnd, UploadRequest, UploadStart, exec_request, file_op, upload_request::Message,
};
use sandgate_tests::{Client, argv, new_id, run_request};

pub(crate) const SIZE: usize = 128 << 20;
pub(crate) const CHUNK: usize = 64 << 10;
const FILE: &str = "bench.bin";

/// A shell that does nothing, started by this process.
pub(crate) async fn bare() {
    assert!(Command::new("/bin/sh").args(["-c", "true"]).status().unwrap().success());
}

/// The same, through gRPC.
pub(crate) async fn run(mut client: Client) {
    client
        .run(run_request(&new_id("run"), argv(&["/bin/sh", "-c", "true"])))
        .await
        .unwrap();
}

/// Reads 4 KiB of a file.
pub(crate) async fn read(mut client: Client) {
    let op = ReadOp {
        path: "/etc/services".into(),
        max_bytes: 4096,
        ..Default::default()
    };
    let ops = vec![FileOp {
        op: Some(file_op::Op::Read(op)),
    }];
    let answer = client
        .file_ops(FileOpsRequest {
            ops,
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(answer.into_inner().results.len(), 1);
}

/// Follows a command that writes much; the writer is held back, so nothing is dropped.
pub(crate) async fn stdout(mut client: Client) {
    let spec = ExecSpec {
        on_full: OnFull::Hold.into(),
        retain_bytes: 4 << 20,
        ..argv(&["head", "-c", &SIZE.to_string(), "/dev/zero"])
    };
    let start = ExecStart {
        exec_id: new_id("out"),
        spec: Some(spec),
        ..Default::default()
    };
    let first = ExecRequest {
        request: Some(exec_request::Request::Start(start)),
    };
    let mut events = client.exec(stream::iter([first])).await.unwrap().into_inner();
    while events.message().await.unwrap().is_some() {}
}

/// Uploads one large file.
pub(crate) async fn upload(mut client: Client) {
    let chunk = Bytes::from(vec![7; CHUNK]);
    let start = Message::Start(UploadStart::default());
    let entry = Message::Entry(UploadEntry {
        path: FILE.into(),
        ..Default::default()
    });
    let chunks = (0..SIZE / CHUNK).map(move |_| Message::Chunk(chunk.clone()));
    let end = Message::EntryEnd(UploadEntryEnd::default());
    let messages = [start, entry].into_iter().chain(chunks).chain([end]);
    let requests = messages.map(|message| UploadRequest { message: Some(message) });
    let answer = client.upload(stream::iter(requests)).await.unwrap().into_inner();
    assert!(answer.failures.is_empty(), "{:?}", answer.failures);
}

/// Downloads it again.
pub(crate) async fn download(mut client: Client) {
    let paths = vec![DownloadPath {
        path: FILE.into(),
        ..Default::default()
    }];
    let mut answers = client
        .download(DownloadRequest {
            paths,
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    while answers.message().await.unwrap().is_some() {}
}
