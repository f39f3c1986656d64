//! Commands and files, through the server.

use std::time::Duration;

use sandgate::{Command, Event, Outcome, Sandbox, v1};
use sandgate_proto::v1::{ErrorReason, exec_exit::Status};

use super::{World, create, level, must_lack, refused, sh};

/// A command's output, exit code, environment and place.
pub async fn commands_run(world: &mut impl World) {
    let client = world.client().await;
    let made = create(&client).await;
    let command = Command::shell("pwd; echo $GIVEN; echo oops >&2; exit 3").env("GIVEN", "value");
    let done = made.sandbox.run(command).send().await.unwrap();
    assert_eq!(done.exec.unwrap().exit.unwrap().status, Some(Status::Code(3)));
    let stdout = done.stdout.unwrap().head;
    assert!(stdout.ends_with(b"value\n"), "{stdout:?}");
    assert_eq!(&done.stderr.unwrap().head[..], b"oops\n");
    let timed_out = made
        .sandbox
        .run(Command::shell("sleep 600").timeout(Duration::from_millis(200)));
    let exit = timed_out.send().await.unwrap().exec.unwrap().exit.unwrap();
    assert!(exit.timed_out, "{exit:?}");
    assert_eq!(
        refused(made.sandbox.exec_info("nobody").await),
        ErrorReason::ExecNotFound
    );
    made.sandbox
        .run(Command::shell("true").id("taken"))
        .send()
        .await
        .unwrap();
    let other = made.sandbox.run(Command::shell("false").id("taken")).send().await;
    assert_eq!(refused(other), ErrorReason::ExecAlreadyExists);
    assert!(
        made.sandbox
            .execs(false)
            .await
            .unwrap()
            .iter()
            .any(|exec| exec.exec_id == "taken")
    );
    made.sandbox.delete().await.unwrap();
}

/// stdin reaches a command, its output comes back live, and it can be signalled.
pub async fn a_stream_carries_both_ways(world: &mut impl World) {
    let client = world.client().await;
    let made = create(&client).await;
    if level(&made.info, "exec.stdin").is_some() {
        stdin_is_echoed(&made.sandbox).await;
    } else {
        must_lack(
            made.sandbox.exec(Command::new(["cat"]).stdin()).wait().await,
            "exec.stdin",
        );
    }
    let exec = made.sandbox.exec(Command::shell("echo up; exec sleep 600"));
    let control = exec.control();
    let waiting = tokio::spawn(exec.wait());
    while control.signal(15).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let Outcome::Exited(exit) = waiting.await.unwrap().unwrap() else {
        panic!("the command started")
    };
    assert_eq!(exit.status, Some(Status::Signal(15)));
    made.sandbox.delete().await.unwrap();
}

async fn stdin_is_echoed(sandbox: &Sandbox) {
    let mut exec = sandbox.exec(Command::new(["cat"]).stdin());
    let mut stdin = exec.stdin().unwrap();
    let mut echoed = Vec::new();
    for round in 0..10 {
        let line = format!("line {round}\n");
        stdin.write(line.clone()).await.unwrap();
        while !echoed.ends_with(line.as_bytes()) {
            if let Event::Output { data, .. } = exec.next().await.unwrap().unwrap() {
                echoed.extend_from_slice(&data);
            }
        }
    }
    stdin.close().await.unwrap();
    assert!(exec.wait().await.unwrap().success());
}

/// Files go in and out, alone and as a tree.
pub async fn files_go_in_and_out(world: &mut impl World) {
    let client = world.client().await;
    let made = create(&client).await;
    let content: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    made.sandbox.upload("big", content.clone()).await.unwrap();
    assert_eq!(sh(&made.sandbox, "wc -c < big").await.trim(), "3000000");
    assert!(made.sandbox.download("big").await.unwrap() == content);
    let read = v1::FileOp {
        op: Some(v1::file_op::Op::Stat(v1::StatOp {
            path: "nothing".to_owned(),
            ..v1::StatOp::default()
        })),
    };
    let results = made.sandbox.file_ops(vec![read]).await.unwrap();
    let Some(v1::file_op_result::Result::Error(error)) = &results[0].result else {
        panic!("{results:?}")
    };
    assert_eq!(error.reason(), ErrorReason::FileNotFound);
    assert!(made.sandbox.download("nothing").await.is_err());
    made.sandbox.delete().await.unwrap();
}
