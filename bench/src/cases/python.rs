//! The Python client beside the Rust client, and beside grpcio with nothing around it.

use std::{cell::Cell, fs};

use prost::Message as _;
use sandgate::{Sandbox, v1};
use sandgate_bench::{
    measure::{Entrant, take_rows, take_turns},
    worker::Worker,
};
use sandgate_proto::runtime::v1::{DownloadPath, DownloadRequest};
use v1::{file_op::Op, file_op_result::Result as Done};

use super::{Bench, Entry, commands::ROW};
use crate::work;

const GROUP: &str = "The Python client";
const SMALL: usize = 4096;
/// As bench/python/client.py has them.
const LARGE_FILE: &str = "/workspace/python/large";
const TREE: &str = "mkdir -p /workspace/python/tree && cd /workspace/python/tree && for d in 0 1 2 3 4 5 6 7 8 9; do \
                    mkdir $d; for f in 0 1 2 3 4 5 6 7 8 9; do echo $d $f > $d/$f.txt; done; done";

pub(crate) async fn client(bench: &mut Bench) {
    let sandbox = &bench.ours.sandbox;
    let size = bench.scale.bytes(64 << 20);
    prepare(sandbox, size).await;
    let worker = &start(bench, size).await;
    let times = &Cell::new(0);
    for (name, word, op, rounds) in [
        ("`read` of 4 KiB", "read", read as fn(usize) -> Op, 300),
        ("`write` of 4 KiB", "write", write, 300),
        ("`edit`", "edit", edit, 300),
        ("`ls` of 10 files", "ls", ls, 300),
        ("`glob` of 100 files", "glob", glob, 100),
    ] {
        times.set(0);
        let ours = || {
            let time = times.replace(times.get() + 1);
            file_op(sandbox, op(time))
        };
        let mut entrants = vec![
            Entrant::telling("python", || worker.work(word)),
            Entrant::new("rust", ours),
        ];
        if word == "read" {
            entrants.push(Entrant::telling("grpcio", || worker.work("echo")));
        }
        let costs = take_rows(bench.scale.rounds(rounds / ROW), ROW, &entrants).await.all;
        let cost = |against| Entry::cost(GROUP, name, against);
        bench
            .report
            .add(cost("the Rust client").is(costs.ratio("python", "rust")));
        if word == "read" {
            let entry = cost("grpcio's own call of the floor, 4 KiB");
            bench.report.add(entry.is(costs.ratio("python", "grpcio")));
        }
    }

    let runs = [
        Entrant::telling("python", || worker.work("run")),
        Entrant::new("rust", || work::run(sandbox)),
    ];
    let runs = take_rows(bench.scale.rounds(60), ROW, &runs).await.all;
    let entry = Entry::cost(GROUP, "`run` of `sh -c true`", "the Rust client");
    bench.report.add(entry.is(runs.ratio("python", "rust")));

    let downloads = [
        Entrant::telling("python", || worker.work("download")),
        Entrant::new("rust", || async {
            assert_eq!(sandbox.download(LARGE_FILE).await.unwrap().len(), size);
        }),
        Entrant::telling("grpcio", || worker.work("stream")),
    ];
    let downloads = take_turns(bench.scale.rounds(9), &downloads).await;
    let cost = |against| Entry::cost(GROUP, "`download` of 64 MiB", against);
    let report = &mut bench.report;
    report.add(cost("the Rust client").is(downloads.ratio("python", "rust")));
    report.add(cost("grpcio's own stream of the floor").is(downloads.ratio("python", "grpcio")));
}

async fn prepare(sandbox: &Sandbox, size: usize) {
    let made = sandbox.run(sandgate::Command::shell(TREE)).send().await.unwrap();
    assert!(made.exec.is_some_and(|exec| exec.exit.is_some()));
    for name in ["small", "edited-by-rust", "edited-by-python"] {
        let content = format!("{:<1$}", "one", SMALL);
        sandbox
            .upload(&format!("/workspace/python/{name}"), content)
            .await
            .unwrap();
    }
    sandbox.upload(LARGE_FILE, vec![7; size]).await.unwrap();
}

async fn start(bench: &Bench, size: usize) -> Worker {
    let server = &bench.ours.server;
    let token = fs::read_to_string(server.state_dir().join("token")).unwrap();
    let request = DownloadRequest {
        paths: vec![DownloadPath {
            path: size.to_string(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let request: String = request
        .encode_to_vec()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let floor = bench.floor.address.trim_start_matches("http://");
    let args = [
        server.tcp_address(),
        token.trim(),
        bench.ours.sandbox.name(),
        "",
        floor,
        &request,
    ];
    Worker::python("pytest", "client.py", &args).await
}

async fn file_op(sandbox: &Sandbox, op: Op) {
    let done = sandbox.file_ops(vec![v1::FileOp { op: Some(op) }]).await.unwrap();
    let done = done.into_iter().next().and_then(|done| done.result);
    assert!(
        done.as_ref().is_some_and(|done| !matches!(done, Done::Error(_))),
        "{done:?}"
    );
}

fn read(_: usize) -> Op {
    Op::Read(v1::ReadOp {
        path: "/workspace/python/small".into(),
        ..Default::default()
    })
}

fn write(_: usize) -> Op {
    Op::Write(v1::WriteOp {
        path: "/workspace/python/written-by-rust".into(),
        content: vec![b'x'; SMALL].into(),
        ..Default::default()
    })
}

/// There and back again.
fn edit(time: usize) -> Op {
    let (old, new) = if time.is_multiple_of(2) {
        ("one", "two")
    } else {
        ("two", "one")
    };
    Op::Edit(v1::EditOp {
        path: "/workspace/python/edited-by-rust".into(),
        old_text: old.into(),
        new_text: new.into(),
        ..Default::default()
    })
}

fn ls(_: usize) -> Op {
    Op::List(v1::ListOp {
        path: "/workspace/python/tree/0".into(),
        ..Default::default()
    })
}

fn glob(_: usize) -> Op {
    Op::Glob(v1::GlobOp {
        path: "/workspace/python/tree".into(),
        pattern: "**/*.txt".into(),
        ..Default::default()
    })
}
