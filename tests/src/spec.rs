//! Requests, shortly written.

use sandgate_proto::runtime::v1::{Argv, ExecSpec, RunRequest, StartExecRequest, exec_spec::Command};

/// A script for the shell.
#[must_use]
pub fn shell(script: impl Into<String>) -> ExecSpec {
    ExecSpec {
        command: Some(Command::Shell(script.into())),
        ..Default::default()
    }
}

/// A program with its arguments.
#[must_use]
pub fn argv(args: &[&str]) -> ExecSpec {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    ExecSpec {
        command: Some(Command::Argv(Argv { args, args_raw: vec![] })),
        ..Default::default()
    }
}

/// Starts it under that id.
#[must_use]
pub fn start_request(id: &str, spec: ExecSpec) -> StartExecRequest {
    StartExecRequest {
        exec_id: id.to_owned(),
        spec: Some(spec),
        ..Default::default()
    }
}

/// Runs it under that id.
#[must_use]
pub fn run_request(id: &str, spec: ExecSpec) -> RunRequest {
    RunRequest {
        exec_id: id.to_owned(),
        spec: Some(spec),
        ..Default::default()
    }
}
