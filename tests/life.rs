//! The runtime's own life: what it is, when it ends, and what its callers can't do to it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

#[path = "life/begin.rs"]
mod begin;
#[path = "life/callers.rs"]
mod callers;
#[path = "life/end.rs"]
mod end;

use std::{
    env, fs,
    io::Write as _,
    os::{
        fd::AsRawFd as _,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime},
};

use rand::RngCore as _;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Pid, Signal, kill_process},
};
use sandgate_proto::{
    runtime::v1::{
        ConfigureRequest, ConfiguredEnv, EnvVar, ExecOffsets, ExecState, FollowExecRequest, FollowTarget,
        GetExecRequest, HelloRequest, RunResponse, StopRequest, exec_exit::Status,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Runtime, RuntimeOptions, binary, collect, connect_to, get, new_id,
    procs::{children, mark, marked, until},
    reason, run_request, seeded, shell, start_request, stop_with_grace,
};

const LIMIT: Duration = Duration::from_secs(60);

async fn run(client: &mut Client, script: &str) -> RunResponse {
    let call = client.run(run_request(&new_id("run"), shell(script)));
    tokio::time::timeout(LIMIT, call).await.unwrap().unwrap().into_inner()
}

async fn stdout(client: &mut Client, script: &str) -> String {
    String::from_utf8(run(client, script).await.stdout.unwrap().head.to_vec()).unwrap()
}

async fn start(client: &mut Client, script: &str) -> String {
    let id = new_id("life");
    client
        .start_exec(start_request(&id, mark(shell(script), &id)))
        .await
        .unwrap();
    id
}

fn ended(runtime: &Runtime) -> String {
    fs::read_to_string(runtime.state_dir().join("ended")).unwrap()
}

async fn written(client: &mut Client, id: &str) -> u64 {
    get(client, id).await.written.unwrap().stdout
}
