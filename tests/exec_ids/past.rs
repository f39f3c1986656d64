//! What is past stays past: an expired id stays taken, and a request for an earlier runtime does nothing.

use super::{stream::Bidi, *};

#[tokio::test]
async fn an_expired_id_stays_taken() {
    for limit in ["--keep-finished=1", "--keep-for=1s"] {
        let mut runtime = Runtime::with_args(&[limit]).await;
        let mut client = runtime.connect().await;
        let id = new_id("old");
        let trace = runtime.workspace().join(&id);
        client.run(run_request(&id, traced(&trace))).await.unwrap();
        client.run(run_request(&new_id("new"), shell("true"))).await.unwrap();
        let asked = GetExecRequest { exec_id: id.clone() };
        let refused = loop {
            match client.get_exec(asked.clone()).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                Err(refused) => break refused,
            }
        };
        assert_eq!(reason(&refused), ErrorReason::ExecExpired);
        for restarted in [false, true] {
            if restarted {
                runtime.kill();
                runtime.restart().await;
                client = runtime.connect().await;
            }
            let targets = vec![FollowTarget {
                exec_id: id.clone(),
                ..Default::default()
            }];
            let attach = ExecAttach {
                exec_id: id.clone(),
                ..Default::default()
            };
            let refusals = [
                client.get_exec(asked.clone()).await.unwrap_err(),
                client.start_exec(start_request(&id, traced(&trace))).await.unwrap_err(),
                client.start_exec(start_request(&id, shell("true"))).await.unwrap_err(),
                client.run(run_request(&id, traced(&trace))).await.unwrap_err(),
                client
                    .follow_exec(FollowExecRequest {
                        targets,
                        ..Default::default()
                    })
                    .await
                    .unwrap_err(),
                Bidi::open(&mut client, Request::Attach(attach)).await.unwrap_err(),
            ];
            for refused in refusals {
                assert_eq!(reason(&refused), ErrorReason::ExecExpired, "{restarted}");
            }
            let kept = client
                .list_execs(ListExecsRequest::default())
                .await
                .unwrap()
                .into_inner()
                .execs;
            assert!(kept.iter().all(|exec| exec.exec_id != id));
            assert_eq!(runs(&trace), 1);
        }
    }
}

#[tokio::test]
async fn a_request_for_an_earlier_runtime_does_nothing() {
    let mut runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let before = client
        .hello(HelloRequest { generation: 1 })
        .await
        .unwrap()
        .into_inner()
        .incarnation;
    let old = new_id("before");
    client
        .start_exec(start_request(&old, with_stdin(shell("echo kept; exec cat"))))
        .await
        .unwrap();
    runtime.kill();
    runtime.restart().await;
    let mut client = runtime.connect().await;
    let id = new_id("after");
    client
        .start_exec(start_request(&id, with_stdin(shell("exec cat"))))
        .await
        .unwrap();
    let trace = runtime.workspace().join("trace");
    let (new, expected_incarnation) = (new_id("never"), before.clone());
    let spec = Some(traced(&trace));
    let start = ExecStart {
        exec_id: new.clone(),
        expected_incarnation: before.clone(),
        spec: spec.clone(),
        ..Default::default()
    };
    let attach = ExecAttach {
        exec_id: id.clone(),
        expected_incarnation: before.clone(),
        ..Default::default()
    };
    let mkdir = MkdirOp {
        path: "made".into(),
        ..Default::default()
    };
    let upload = UploadStart {
        expected_incarnation: before.clone(),
        ..Default::default()
    };
    let upload = UploadRequest {
        message: Some(upload_request::Message::Start(upload)),
    };
    let mut run = run_request(&new, traced(&trace));
    run.expected_incarnation = before.clone();
    let refusals = [
        client
            .start_exec(StartExecRequest {
                exec_id: new.clone(),
                expected_incarnation: before.clone(),
                spec,
            })
            .await
            .unwrap_err(),
        client.run(run).await.unwrap_err(),
        Bidi::open(&mut client, Request::Start(start)).await.unwrap_err(),
        Bidi::open(&mut client, Request::Attach(attach)).await.unwrap_err(),
        client
            .follow_exec(FollowExecRequest {
                targets: vec![FollowTarget {
                    exec_id: id.clone(),
                    ..Default::default()
                }],
                expected_incarnation: before.clone(),
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client
            .write_exec(WriteExecRequest {
                expected_incarnation: before.clone(),
                ..write_request(&id, 0, b"x", false)
            })
            .await
            .unwrap_err(),
        client
            .signal_exec(SignalExecRequest {
                exec_id: id.clone(),
                expected_incarnation: before.clone(),
                signal: Some(ExecSignal { signal: 9 }),
            })
            .await
            .unwrap_err(),
        client
            .resize_exec(ResizeExecRequest {
                exec_id: id.clone(),
                expected_incarnation: before.clone(),
                size: Some(PtySize { columns: 1, rows: 1 }),
            })
            .await
            .unwrap_err(),
        client
            .file_ops(FileOpsRequest {
                expected_incarnation: before.clone(),
                ops: vec![FileOp {
                    op: Some(Op::Mkdir(mkdir)),
                }],
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client.upload(tokio_stream::iter([upload])).await.unwrap_err(),
        client
            .write_chunk(WriteChunkRequest {
                expected_incarnation: before.clone(),
                upload_id: "up".into(),
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client
            .configure(ConfigureRequest {
                expected_incarnation: before.clone(),
                ..Default::default()
            })
            .await
            .unwrap_err(),
        client
            .stop(StopRequest {
                expected_incarnation,
                ..Default::default()
            })
            .await
            .unwrap_err(),
    ];
    for (place, refused) in refusals.iter().enumerate() {
        assert_eq!(reason(refused), ErrorReason::SandboxRestarted, "request {place}");
    }
    assert_eq!((runs(&trace), runtime.workspace().join("made").exists()), (0, false));
    let exec = get(&mut client, &id).await;
    assert_eq!((exec.state(), exec.stdin_offset), (ExecState::Running, 0));
    let never = client.get_exec(GetExecRequest { exec_id: new }).await.unwrap_err();
    assert_eq!(reason(&never), ErrorReason::ExecNotFound);
    // What the earlier one ran can still be read, and says who ran it.
    let exec = get(&mut client, &old).await;
    assert!(exec.incarnation == before && matches!(exec.exit.unwrap().status, Some(Status::Lost(_))));
}
