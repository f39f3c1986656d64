//! Runtimes and requests that the cases share.

use sandgate_proto::runtime::v1::{
    EditOp, ExecSignal, FileOp, FileOpsRequest, ReadOp, SignalExecRequest, StatOp, StdinMode, StdinWrite, UploadEntry,
    UploadRequest, WriteChunkRequest, WriteExecRequest, WriteMode, WriteOp, exec_exit::Status as Exit, file_op::Op,
    upload_request::Message,
};
use sandgate_tests::{Client, Runtime, RuntimeOptions, run_request, shell, start_request};
use tonic::Status;

pub(crate) async fn started() -> (Runtime, Client) {
    let runtime = Runtime::start().await;
    let client = runtime.connect().await;
    (runtime, client)
}

/// A runtime with `cat`, which reads its stdin.
pub(crate) async fn listening() -> (Runtime, Client) {
    let (runtime, mut client) = started().await;
    let mut spec = shell("cat");
    spec.set_stdin(StdinMode::Open);
    client.start_exec(start_request("cat", spec)).await.unwrap();
    (runtime, client)
}

/// A runtime in a user namespace of its own: it is root there, and may neither become another user nor watch files. The
/// limit is the namespace's own, so nobody else notices.
pub(crate) async fn confined() -> Runtime {
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let wrapper = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"];
    Runtime::start_with(RuntimeOptions {
        wrapper: wrapper.map(Into::into).to_vec(),
        ..Default::default()
    })
    .await
}

pub(crate) async fn run(client: &mut Client, id: &str, script: &str) {
    let exec = client
        .run(run_request(id, shell(script)))
        .await
        .unwrap()
        .into_inner()
        .exec
        .unwrap();
    let exit = exec.exit.unwrap();
    assert_eq!(exit.status, Some(Exit::Code(0)), "{script}");
}

pub(crate) async fn signal(client: &mut Client, id: &str, signal: i32) -> Result<(), Status> {
    let signal = Some(ExecSignal { signal });
    client
        .signal_exec(SignalExecRequest {
            exec_id: id.into(),
            signal,
            ..Default::default()
        })
        .await
        .map(drop)
}

pub(crate) fn stdin(id: &str, writer: &str, offset: u64) -> WriteExecRequest {
    let stdin = Some(StdinWrite {
        offset,
        data: "hello".into(),
        close: false,
    });
    WriteExecRequest {
        exec_id: id.into(),
        writer: writer.into(),
        stdin,
        ..Default::default()
    }
}

pub(crate) fn chunk(id: &str, offset: u64) -> WriteChunkRequest {
    let entry = Some(UploadEntry {
        path: "uploaded".into(),
        ..Default::default()
    });
    WriteChunkRequest {
        upload_id: id.into(),
        entry,
        offset,
        data: "hello".into(),
        ..Default::default()
    }
}

pub(crate) fn batch(id: &str, ops: Vec<FileOp>) -> FileOpsRequest {
    FileOpsRequest {
        batch_id: id.into(),
        ops,
        ..Default::default()
    }
}

pub(crate) fn stream<const N: usize>(
    messages: [Message; N],
) -> impl tonic::IntoStreamingRequest<Message = UploadRequest> {
    tokio_stream::iter(messages.map(|message| UploadRequest { message: Some(message) }))
}

pub(crate) fn op(op: Op) -> FileOp {
    FileOp { op: Some(op) }
}

pub(crate) fn stat(path: &str) -> FileOp {
    op(Op::Stat(StatOp {
        path: path.into(),
        ..Default::default()
    }))
}

pub(crate) fn read(path: &str) -> FileOp {
    op(Op::Read(ReadOp {
        path: path.into(),
        ..Default::default()
    }))
}

pub(crate) fn write(path: &str, mode: WriteMode) -> FileOp {
    op(Op::Write(WriteOp {
        path: path.into(),
        content: "x".into(),
        write_mode: mode.into(),
        ..Default::default()
    }))
}

pub(crate) fn edit(path: &str, old: &str) -> FileOp {
    op(Op::Edit(EditOp {
        path: path.into(),
        old_text: old.to_owned().into(),
        ..Default::default()
    }))
}
