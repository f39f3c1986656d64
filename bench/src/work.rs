//! The work that is measured: the same for Sandgate, for its runtime alone, and for the floor.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandgate::{Command, Sandbox, v1};
use sandgate_proto::runtime::v1::{
    DownloadPath, DownloadRequest, ExecRequest, ExecStart, FileOp, FileOpsRequest, UploadRequest, exec_request,
    upload_request,
};
use sandgate_provider::Link;
use sandgate_tests::{Client, argv, new_id, run_request};

/// As large as the messages that Sandgate sends.
pub(crate) const CHUNK: usize = 64 << 10;
/// What a follower that falls behind may still find. Writers are held back, so nothing is dropped.
pub(crate) const RETAINED: u64 = 4 << 20;
pub(crate) const NOTHING: [&str; 3] = ["/bin/sh", "-c", "true"];

/// A shell that does nothing, started by this process.
pub(crate) async fn spawn_bare() {
    let spawned = || std::process::Command::new(NOTHING[0]).args(&NOTHING[1..]).status();
    assert!(spawned().unwrap().success());
}

/// The same through Sandgate.
pub(crate) async fn run(sandbox: &Sandbox) {
    let answer = sandbox.run(Command::new(NOTHING)).send().await.unwrap();
    assert!(
        answer.exec.is_some_and(|exec| exec
            .exit
            .is_some_and(|exit| exit.status == Some(v1::exec_exit::Status::Code(0)))),
        "it did not run"
    );
}

/// The same through the floor.
pub(crate) async fn run_at(client: &Client) {
    client
        .clone()
        .run(run_request(&new_id("run"), argv(&NOTHING)))
        .await
        .unwrap();
}

/// The same through a runtime alone, by the way that a server on the same machine takes.
pub(crate) async fn run_next_door(link: &Link) {
    link.client()
        .run(run_request(&new_id("run"), argv(&NOTHING)))
        .await
        .unwrap();
}

/// Reads 4 KiB of a file, `times` in one call.
pub(crate) async fn read(sandbox: &Sandbox, times: usize) {
    let op = v1::FileOp {
        op: Some(v1::file_op::Op::Read(v1::ReadOp {
            path: SMALL_FILE.into(),
            max_bytes: SMALL_BYTES as u64,
            ..Default::default()
        })),
    };
    let request = v1::FileOpsRequest {
        sandbox: sandbox.name().into(),
        ops: vec![op; times],
        ..Default::default()
    };
    let answer = sandbox.client().raw().file_ops(request).await.unwrap().into_inner();
    let is_read = |result: &v1::FileOpResult| matches!(&result.result, Some(v1::file_op_result::Result::Read(read)) if read.content.len() == SMALL_BYTES);
    assert!(
        answer.results.len() == times && answer.results.iter().all(is_read),
        "{answer:?}"
    );
}

/// What `read` reads.
pub(crate) const SMALL_FILE: &str = "/workspace/small";
pub(crate) const SMALL_BYTES: usize = 4096;

/// The floor's answer of 4 KiB, `times` in one call.
pub(crate) async fn echo(client: &Client, times: usize) {
    let request = FileOpsRequest {
        ops: vec![FileOp::default(); times],
        ..Default::default()
    };
    let answer = client.clone().file_ops(request).await.unwrap();
    assert_eq!(answer.into_inner().results.len(), times);
}

/// Follows a command that writes `size` bytes; the writer is held back, so nothing is dropped.
pub(crate) async fn stdout(sandbox: &Sandbox, size: usize) {
    let seen = drain(sandbox.exec(zeros(size, v1::OnFull::Hold))).await;
    assert_eq!(seen, size);
}

/// A command that writes `size` bytes as fast as it can.
pub(crate) fn zeros(size: usize, on_full: v1::OnFull) -> Command {
    writing(format!("exec head -c {size} /dev/zero"), on_full)
}

/// The same, once it has read a line, so that nobody who follows it comes late.
pub(crate) fn gated_zeros(size: usize, on_full: v1::OnFull) -> Command {
    writing(format!("read go; exec head -c {size} /dev/zero"), on_full).stdin()
}

fn writing(script: String, on_full: v1::OnFull) -> Command {
    Command::from_spec(v1::ExecSpec {
        command: Some(v1::exec_spec::Command::Shell(script)),
        on_full: on_full.into(),
        retain_bytes: RETAINED,
        ..Default::default()
    })
}

/// Lets a gated command begin.
pub(crate) async fn open_gate(sandbox: &Sandbox, exec_id: &str) {
    let request = v1::WriteExecRequest {
        sandbox: sandbox.name().into(),
        exec_id: exec_id.into(),
        writer: "gate".into(),
        stdin: Some(v1::StdinWrite {
            offset: 0,
            data: Bytes::from_static(b"\n"),
            close: true,
        }),
        ..Default::default()
    };
    sandbox.client().raw().write_exec(request).await.unwrap();
}

/// Reads all there is; answers how many bytes came.
pub(crate) async fn drain(mut exec: sandgate::Exec) -> usize {
    let mut seen = 0;
    while let Some(event) = exec.next().await {
        if let sandgate::Event::Output { data, .. } = event.unwrap() {
            seen += data.len();
        }
    }
    seen
}

pub(crate) async fn stdout_of_floor(client: &Client, size: usize) {
    let start = ExecStart {
        exec_id: size.to_string(),
        ..Default::default()
    };
    let first = ExecRequest {
        request: Some(exec_request::Request::Start(start)),
    };
    let mut events = client.clone().exec(stream::iter([first])).await.unwrap().into_inner();
    while events.message().await.unwrap().is_some() {}
}

const LARGE_FILE: &str = "/workspace/large";

/// Uploads one file.
pub(crate) async fn upload(sandbox: &Sandbox, size: usize) {
    let (chunk, name) = (Bytes::from(vec![7; CHUNK]), sandbox.name().to_owned());
    let start = v1::upload_request::Message::Start(v1::UploadStart {
        sandbox: name,
        ..Default::default()
    });
    let entry = v1::upload_request::Message::Entry(v1::UploadEntry {
        path: LARGE_FILE.into(),
        ..Default::default()
    });
    let chunks = (0..size / CHUNK).map(move |_| v1::upload_request::Message::Chunk(chunk.clone()));
    let end = v1::upload_request::Message::EntryEnd(v1::UploadEntryEnd::default());
    let messages = [start, entry].into_iter().chain(chunks).chain([end]);
    let requests = messages.map(|message| v1::UploadRequest { message: Some(message) });
    let answer = sandbox
        .client()
        .raw()
        .upload(stream::iter(requests))
        .await
        .unwrap()
        .into_inner();
    assert!(answer.failures.is_empty(), "{:?}", answer.failures);
}

pub(crate) async fn upload_to_floor(client: &Client, size: usize) {
    let chunk = Bytes::from(vec![7; CHUNK]);
    let requests = (0..size / CHUNK).map(move |_| UploadRequest {
        message: Some(upload_request::Message::Chunk(chunk.clone())),
    });
    client.clone().upload(stream::iter(requests)).await.unwrap();
}

/// Downloads what `upload` made.
pub(crate) async fn download(sandbox: &Sandbox, size: usize) {
    let request = v1::DownloadRequest {
        sandbox: sandbox.name().into(),
        paths: vec![v1::DownloadPath {
            path: LARGE_FILE.into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut answers = sandbox.client().raw().download(request).await.unwrap().into_inner();
    let mut seen = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        if let Some(v1::download_response::Message::Chunk(chunk)) = answer.message {
            seen += chunk.len();
        }
    }
    assert_eq!(seen, size);
}

pub(crate) async fn download_from_floor(client: &Client, size: usize) {
    let paths = vec![DownloadPath {
        path: size.to_string(),
        ..Default::default()
    }];
    let request = DownloadRequest {
        paths,
        ..Default::default()
    };
    let mut answers = client.clone().download(request).await.unwrap().into_inner();
    while answers.next().await.is_some() {}
}
