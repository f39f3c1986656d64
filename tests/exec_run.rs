//! Run, and all that a request says of how a command is to run.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "exec_run/budget.rs"]
mod budget;
#[path = "exec_run/environment.rs"]
mod environment;
#[path = "exec_run/ready.rs"]
mod ready;
#[path = "exec_run/saved.rs"]
mod saved;
#[path = "exec_run/start.rs"]
mod start;
#[path = "exec_run/waiting.rs"]
mod waiting;

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use sandgate_proto::{
    runtime::v1::{
        Argv, BudgetedOutput, ConfigureRequest, ConfiguredEnv, EnvVar, ExecOffsets, ExecSpec, ExecState, OnCallerGone,
        OnFull, OutputBudget, Rlimit, RunRequest, RunResponse, SaveOutput, StderrMode, StdinMode, StdinWrite,
        StopRequest, WriteExecRequest, exec_exit::Status, exec_spec::Command, start_failure::Reason,
    },
    v1::ErrorReason,
};
use sandgate_tests::{Client, Runtime, RuntimeOptions, argv, get, new_id, reason, run_request, shell, start, until};
use tokio::time::{sleep, timeout};

const MIB: u64 = 1 << 20;
const NOBODY: u32 = 65_534;
const PATIENCE: Duration = Duration::from_secs(60);

async fn run(client: &mut Client, spec: ExecSpec) -> RunResponse {
    run_with(client, run_request(&new_id("run"), spec)).await
}

async fn run_with(client: &mut Client, request: RunRequest) -> RunResponse {
    timeout(PATIENCE, client.run(request))
        .await
        .unwrap()
        .unwrap()
        .into_inner()
}

/// Runs to success and answers stdout.
async fn stdout(client: &mut Client, spec: ExecSpec) -> String {
    let answer = run(client, spec).await;
    assert_eq!(status(&answer), Some(Status::Code(0)), "{answer:?}");
    String::from_utf8(answer.stdout.unwrap().head.into()).unwrap()
}

fn status(answer: &RunResponse) -> Option<Status> {
    answer.exec.as_ref().unwrap().exit.as_ref().and_then(|exit| exit.status)
}

fn var(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: value.into(),
        ..Default::default()
    }
}

fn sorted(lines: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    lines
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

fn program(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
