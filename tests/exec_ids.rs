//! An exec id runs once, whoever asks for it, however often, and whatever becomes of the runtime; and a byte of stdin
//! arrives once.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

#[path = "exec_ids/listed.rs"]
mod listed;
#[path = "exec_ids/once.rs"]
mod once;
#[path = "exec_ids/past.rs"]
mod past;
#[path = "exec_ids/stdin.rs"]
mod stdin;
#[path = "exec_ids/stream.rs"]
mod stream;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rand::{Rng as _, RngCore as _};
use sandgate_proto::{
    runtime::v1::{
        ConfigureRequest, EnvVar, ExecAttach, ExecDetach, ExecInfo, ExecOffsets, ExecRequest, ExecResponse, ExecSignal,
        ExecSpec, ExecStart, ExecState, FileOp, FileOpsRequest, FollowExecRequest, FollowFrom, FollowTarget,
        GetExecRequest, HelloRequest, ListExecsRequest, MkdirOp, Pty, PtySize, ResizeExecRequest, SignalExecRequest,
        StartExecRequest, StdinMode, StdinWrite, StopRequest, UploadRequest, UploadStart, WriteChunkRequest,
        WriteExecRequest, exec_exit::Status, exec_request::Request, exec_response::Response, file_op::Op,
        follow_from::Place, upload_request,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Output, Runtime, argv, collect, connect_to, get, new_id,
    procs::{mark, marked, until},
    reason, run_request, seeded, shell, start_request,
};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

const LIMIT: Duration = Duration::from_secs(120);

/// A command that leaves a trace each time it runs.
fn traced(trace: &Path) -> ExecSpec {
    shell(format!("echo ran >> {}", trace.display()))
}

fn runs(trace: &Path) -> usize {
    fs::read_to_string(trace).map_or(0, |text| text.lines().count())
}

async fn exited(client: &mut Client, id: &str) -> ExecInfo {
    collect(client, id, ExecOffsets::default()).await;
    get(client, id).await
}

fn millis(millis: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 0,
        nanos: millis * 1_000_000,
    })
}

fn write_request(id: &str, offset: u64, data: &[u8], close: bool) -> WriteExecRequest {
    let stdin = StdinWrite {
        offset,
        data: data.to_vec().into(),
        close,
    };
    WriteExecRequest {
        exec_id: id.to_owned(),
        stdin: Some(stdin),
        ..Default::default()
    }
}

fn with_stdin(spec: ExecSpec) -> ExecSpec {
    ExecSpec {
        stdin: StdinMode::Open.into(),
        ..spec
    }
}
