//! How long a call waits, and what happens when its caller does not.

use super::*;

#[tokio::test]
async fn called_again_it_goes_on_waiting() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let spec = shell("echo begun; while [ ! -e go ]; do sleep 0.02; done; echo done");
    let short = prost_types::Duration {
        seconds: 0,
        nanos: 200_000_000,
    };
    let request = RunRequest {
        max_wait: Some(short),
        ..run_request("again", spec.clone())
    };
    for _ in 0..3 {
        let answer = run_with(&mut client, request.clone()).await;
        assert_eq!(answer.exec.unwrap().state(), ExecState::Running);
    }
    let answer = until(&mut client, "again", |exec| exec.written.unwrap().stdout == 6).await;
    assert_eq!(answer.written, Some(ExecOffsets { stdout: 6, stderr: 0 }));
    let answer = run_with(&mut client, request).await;
    assert_eq!(&answer.stdout.unwrap().head[..], b"begun\n");
    let waiting = tokio::spawn({
        let (mut client, request) = (client.clone(), run_request("again", spec.clone()));
        async move { run_with(&mut client, request).await }
    });
    fs::write(runtime.workspace().join("go"), "").unwrap();
    let answer = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(status(&answer), Some(Status::Code(0)));
    assert_eq!(&answer.stdout.unwrap().head[..], b"begun\ndone\n");
    // And after the end it answers at once, with the same.
    assert_eq!(
        run_with(&mut client, run_request("again", spec)).await.exec,
        answer.exec
    );
    let other = client.run(run_request("again", shell("true"))).await.unwrap_err();
    assert_eq!(reason(&other), ErrorReason::ExecAlreadyExists);
}

/// Runs a command and goes away once it has started.
async fn run_and_go(client: &mut Client, request: RunRequest) {
    let id = request.exec_id.clone();
    let calling = tokio::spawn({
        let mut client = client.clone();
        async move { client.run(request).await.map(drop) }
    });
    while client
        .get_exec(sandgate_proto::runtime::v1::GetExecRequest { exec_id: id.clone() })
        .await
        .is_err()
    {
        sleep(Duration::from_millis(5)).await;
    }
    until(client, &id, |exec| exec.pid > 0).await;
    calling.abort();
    assert!(calling.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_caller_that_goes_away_may_take_its_command_along() {
    for (cgroups, grace) in [(false, None), (true, Some(seconds(1)))] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        let request = |id, policy: OnCallerGone| RunRequest {
            on_caller_gone: policy.into(),
            caller_grace: grace,
            ..run_request(id, shell("sleep 1000 & sleep 1000"))
        };
        run_and_go(&mut client, request("keep", OnCallerGone::Keep)).await;
        run_and_go(&mut client, request("unsaid", OnCallerGone::Unspecified)).await;
        run_and_go(&mut client, request("kill", OnCallerGone::Kill)).await;
        let killed = until(&mut client, "kill", |exec| exec.output_ended && !exec.processes_alive).await;
        assert_eq!(killed.exit.unwrap().status, Some(Status::Signal(9)));
        for id in ["keep", "unsaid"] {
            assert_eq!(get(&mut client, id).await.state(), ExecState::Running, "{id}");
        }
    }
}

#[tokio::test]
async fn a_caller_that_comes_back_keeps_its_command() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let request = RunRequest {
        on_caller_gone: OnCallerGone::Kill.into(),
        caller_grace: Some(seconds(2)),
        ..run_request("back", shell("while [ ! -e go ]; do sleep 0.02; done; echo done"))
    };
    run_and_go(&mut client, request.clone()).await;
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { run_with(&mut client, request).await }
    });
    // Beyond the grace time.
    sleep(Duration::from_secs(3)).await;
    fs::write(runtime.workspace().join("go"), "").unwrap();
    let answer = timeout(PATIENCE, waiting).await.unwrap().unwrap();
    assert_eq!(status(&answer), Some(Status::Code(0)), "{answer:?}");
}

#[tokio::test]
async fn a_caller_that_came_back_and_was_answered_keeps_its_command_too() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let request = RunRequest {
        on_caller_gone: OnCallerGone::Kill.into(),
        caller_grace: Some(seconds(2)),
        max_wait: Some(seconds(50)),
        ..run_request("back", shell("sleep 1000"))
    };
    run_and_go(&mut client, request.clone()).await;
    let answer = run_with(
        &mut client,
        RunRequest {
            max_wait: Some(seconds(0)),
            ..request
        },
    )
    .await;
    assert_eq!(answer.exec.unwrap().state(), ExecState::Running);
    // Beyond the grace time.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(get(&mut client, "back").await.state(), ExecState::Running);
}
