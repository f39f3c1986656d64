//! Calls as a server on the same machine makes them, without HTTP/2, are those of gRPC.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{
        ExecOffsets, ExecState, FileOp, FileOpsRequest, GetExecRequest, HelloRequest, ListExecsRequest, OnCallerGone,
        ReadOp, RunRequest, StopRequest, exec_exit::Status, file_op, file_op_result,
    },
    v1::ErrorReason,
};
use sandgate_tests::{Runtime, argv, collect, link_to, new_id, reason, run_request, shell, until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::{sleep, timeout},
};

#[tokio::test]
async fn a_call_is_the_same_by_either_way() {
    let runtime = Runtime::with_cgroups(true).await;
    let (mut grpc, mut next_door) = (runtime.connect().await, link_to(runtime.socket()).client());
    let id = new_id("run");
    let answer = next_door.run(run_request(&id, shell("echo out; exit 3"))).await;
    let answer = answer.unwrap().into_inner();
    assert_eq!(answer.exec.clone().unwrap().exit.unwrap().status, Some(Status::Code(3)));
    assert_eq!(&answer.stdout.as_ref().unwrap().head[..], b"out\n");
    // The same command, not another one, is what the other way finds; and its stream.
    let again = grpc.run(run_request(&id, shell("echo out; exit 3"))).await.unwrap();
    assert_eq!(again.into_inner().stdout, answer.stdout);
    let get = GetExecRequest { exec_id: id.clone() };
    let (one, other) = (grpc.get_exec(get.clone()).await, next_door.get_exec(get).await);
    assert_eq!(one.unwrap().into_inner(), other.unwrap().into_inner());
    let output = collect(&mut grpc, &id, ExecOffsets::default()).await;
    assert_eq!(output.stdout, b"out\n");
    // A refusal has all its details.
    let conflict = || run_request(&id, shell("something else"));
    let (one, other) = (grpc.run(conflict()).await, next_door.run(conflict()).await);
    let (one, other) = (one.unwrap_err(), other.unwrap_err());
    assert_eq!(reason(&other), ErrorReason::ExecAlreadyExists);
    assert_eq!(Refusal::from_status(&one), Refusal::from_status(&other));
    let hello = HelloRequest { generation: 1 };
    let (one, other) = (grpc.hello(hello).await.unwrap(), next_door.hello(hello).await.unwrap());
    assert_eq!(one.into_inner(), other.into_inner());
}

#[tokio::test]
async fn streams_and_calls_go_side_by_side() {
    let runtime = Runtime::start().await;
    let link = link_to(runtime.socket());
    let run = |n: usize| {
        let mut client = link.client();
        async move {
            let id = format!("many-{n}");
            let request = run_request(&id, shell(format!("head -c {} /dev/zero | tr '\\0' x", 1000 * n)));
            let answer = client.run(request).await.unwrap().into_inner();
            let seen = answer.stdout.unwrap();
            assert_eq!(seen.total_bytes, 1000 * n as u64);
        }
    };
    let follow = async {
        let mut grpc = runtime.connect().await;
        let slow = shell("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done");
        grpc.start_exec(sandgate_tests::start_request("slow", slow))
            .await
            .unwrap();
        collect(&mut grpc, "slow", ExecOffsets::default()).await
    };
    let runs = async {
        for run in (0..40).map(|n| tokio::spawn(run(n))).collect::<Vec<_>>() {
            run.await.unwrap();
        }
    };
    let ((), output) = tokio::join!(runs, follow);
    assert_eq!(output.stdout, b"1\n2\n3\n4\n5\n");
    // A message of 2 MiB.
    let path = runtime.workspace().join("large");
    std::fs::write(&path, vec![b'x'; 2 << 20]).unwrap();
    let read = ReadOp {
        path: path.to_str().unwrap().into(),
        max_bytes: 2 << 20,
        ..Default::default()
    };
    let request = FileOpsRequest {
        ops: vec![FileOp {
            op: Some(file_op::Op::Read(read)),
        }],
        ..Default::default()
    };
    let answer = link.client().file_ops(request).await.unwrap().into_inner();
    let Some(file_op_result::Result::Read(read)) = &answer.results[0].result else {
        panic!("{answer:?}")
    };
    assert_eq!(read.content.len(), 2 << 20);
}

#[tokio::test]
async fn a_caller_who_leaves_is_noticed() {
    let runtime = Runtime::start().await;
    let link = link_to(runtime.socket());
    let request = RunRequest {
        on_caller_gone: OnCallerGone::Kill.into(),
        ..run_request("left", argv(&["sleep", "600"]))
    };
    let mut caller = link.client();
    assert!(timeout(Duration::from_millis(300), caller.run(request)).await.is_err());
    let mut client = runtime.connect().await;
    until(&mut client, "left", |exec| exec.state() == ExecState::Exited).await;
}

#[tokio::test]
async fn whoever_speaks_nothing_that_is_known_harms_nobody() {
    let runtime = Runtime::start().await;
    let mut client = link_to(runtime.socket()).client();
    let mut silent = UnixStream::connect(runtime.socket()).await.unwrap();
    for said in [
        &b"S"[..],
        b"SANDGATE BRIEF 9",
        b"SANDGATE BRIEF 1\xff\xff\xff\xff\x01\0\0\0\x01",
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = UnixStream::connect(runtime.socket()).await.unwrap();
        stream.write_all(said).await.unwrap();
        stream.shutdown().await.unwrap();
        // It is closed, whatever was said before.
        let mut seen = Vec::new();
        let _ = timeout(Duration::from_secs(30), stream.read_to_end(&mut seen))
            .await
            .unwrap();
        client.list_execs(ListExecsRequest::default()).await.unwrap();
    }
    // One that says nothing is closed in time.
    let read = timeout(Duration::from_secs(60), silent.read(&mut [0; 1])).await;
    assert_eq!(read.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn what_was_called_is_answered_before_the_end() {
    let mut runtime = Runtime::start().await;
    let link = link_to(runtime.socket());
    let mut waiting = link.client();
    let run = tokio::spawn(async move { waiting.run(run_request("waits", argv(&["sleep", "600"]))).await });
    sleep(Duration::from_millis(300)).await;
    let stop = link.client().stop(StopRequest::default()).await;
    stop.unwrap();
    let exec = run.await.unwrap().unwrap().into_inner().exec.unwrap();
    assert!(matches!(exec.exit.unwrap().status, Some(Status::Signal(_))));
    assert!(runtime.wait().await.success());
    link.client().hello(HelloRequest { generation: 1 }).await.unwrap_err();
}
