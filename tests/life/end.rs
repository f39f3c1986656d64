//! When and how the runtime ends: deadline, stop, signal, idleness, and what is kept over it.

use super::*;

#[tokio::test]
async fn the_deadline_ends_everything() {
    for cgroups in [false, true] {
        let options = RuntimeOptions {
            args: vec!["--deadline=1500ms".into()],
            cgroups,
            ..Default::default()
        };
        let mut runtime = Runtime::start_with(options).await;
        let mut client = runtime.connect().await;
        assert!(
            client
                .hello(HelloRequest { generation: 1 })
                .await
                .unwrap()
                .into_inner()
                .deadline
                .is_some()
        );
        let id = start(
            &mut client,
            "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & echo said; wait",
        )
        .await;
        until("all run", || marked(&id).len() == 3).await;
        assert_eq!(runtime.wait().await.code(), Some(0));
        assert_eq!((ended(&runtime).as_str(), marked(&id)), ("deadline", vec![]));
    }
}

#[tokio::test]
async fn what_was_said_is_kept_over_an_orderly_end() {
    let mut runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let id = start(
        &mut client,
        "trap 'echo bye; exit 4' TERM; echo said; while :; do sleep 0.01; done",
    )
    .await;
    while written(&mut client, &id).await < 5 {}
    stop_with_grace(&mut client, 30).await;
    assert_eq!(runtime.wait().await.code(), Some(0));
    assert_eq!((ended(&runtime).as_str(), marked(&id)), ("stopped", vec![]));
    runtime.restart().await;
    assert!(!runtime.state_dir().join("ended").exists());
    let mut client = runtime.connect().await;
    let output = collect(&mut client, &id, ExecOffsets::default()).await;
    assert_eq!(
        (&output.stdout[..], output.exit.unwrap().status),
        (&b"said\nbye\n"[..], Some(Status::Code(4)))
    );
}

#[tokio::test]
async fn stop_without_grace_and_sigterm_end_it_in_order() {
    for signal in [false, true] {
        let mut runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let id = start(&mut client, "(setsid sleep 1000 &); exec sleep 1000").await;
        until("both run", || marked(&id).len() == 2).await;
        if signal {
            kill_process(
                Pid::from_raw(i32::try_from(runtime.pid()).unwrap()).unwrap(),
                Signal::TERM,
            )
            .unwrap();
        } else {
            client.stop(StopRequest::default()).await.unwrap();
        }
        assert_eq!(runtime.wait().await.code(), Some(0));
        assert_eq!(
            (ended(&runtime).as_str(), marked(&id)),
            (if signal { "signal" } else { "stopped" }, vec![])
        );
        runtime.restart().await;
        let mut client = runtime.connect().await;
        let output = collect(&mut client, &id, ExecOffsets::default()).await;
        let by = if signal { 15 } else { 9 };
        assert_eq!(output.exit.unwrap().status, Some(Status::Signal(by)));
    }
}

#[tokio::test]
async fn nothing_starts_while_it_stops() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let id = start(&mut client, "trap '' TERM; echo up; while :; do sleep 0.05; done").await;
    while written(&mut client, &id).await == 0 {}
    stop_with_grace(&mut client, 20).await;
    let refused = loop {
        match client.start_exec(start_request(&new_id("late"), shell("true"))).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(refused) => break refused,
        }
    };
    assert_eq!(reason(&refused), ErrorReason::Stopping);
}

#[tokio::test]
async fn it_idles_only_when_nothing_lives_and_nobody_calls() {
    let mut runtime = Runtime::with_args(&["--idle-limit=1s"]).await;
    let mut client = runtime.connect().await;
    let stop = runtime.workspace().join("stop");
    let wait = format!("while ! test -e {}; do sleep 0.05; done", stop.display());
    // The program ends, what it left lives.
    run(&mut client, &format!("({wait}) > /dev/null 2>&1 &")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        client.hello(HelloRequest { generation: 1 }).await.is_ok(),
        "it ended while a process lived"
    );
    fs::write(&stop, "").unwrap();
    assert_eq!(runtime.wait().await.code(), Some(0));
    assert_eq!(ended(&runtime), "idle");
}

#[tokio::test]
async fn an_open_stream_is_a_call() {
    let mut runtime = Runtime::with_args(&["--idle-limit=1s"]).await;
    let mut client = runtime.connect().await;
    // Watching files has no end of its own.
    let request = sandgate_proto::runtime::v1::WatchFilesRequest {
        path: runtime.workspace().to_str().unwrap().into(),
        ..Default::default()
    };
    let watch = client.watch_files(request).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(fs::exists(runtime.socket()).unwrap() && !runtime.state_dir().join("ended").exists());
    drop(watch);
    assert_eq!(runtime.wait().await.code(), Some(0));
    assert_eq!(ended(&runtime), "idle");
}

#[tokio::test]
async fn configure_changes_limits_and_environment() {
    let mut runtime = Runtime::with_args(&["--idle-limit=1h", "--deadline=2h"]).await;
    let mut client = runtime.connect().await;
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let vars = |vars: &[(&str, &str)]| {
        let var = |(name, value): &(&str, &str)| EnvVar {
            name: (*name).into(),
            value: (*value).into(),
            ..Default::default()
        };
        Some(ConfiguredEnv {
            vars: vars.iter().map(var).collect(),
        })
    };
    let hello = client.hello(HelloRequest { generation: 1 }).await.unwrap().into_inner();
    assert_eq!(hello.idle_limit, seconds(3_600));
    let request = ConfigureRequest {
        env: vars(&[("A", "1"), ("B", "2")]),
        ..Default::default()
    };
    let limits = client.configure(request).await.unwrap().into_inner();
    assert_eq!(
        (limits.idle_limit, limits.deadline),
        (seconds(3_600), hello.deadline),
        "absent fields stay"
    );
    assert_eq!(stdout(&mut client, "echo $A$B").await, "12\n");
    let request = ConfigureRequest {
        env: vars(&[("A", "3")]),
        idle_limit: seconds(0),
        ..Default::default()
    };
    assert_eq!(client.configure(request).await.unwrap().into_inner().idle_limit, None);
    assert_eq!(stdout(&mut client, "echo $A$B").await, "3\n");
    let wrong = ConfigureRequest {
        env: vars(&[("A=B", "3")]),
        ..Default::default()
    };
    assert_eq!(
        reason(&client.configure(wrong).await.unwrap_err()),
        ErrorReason::InvalidArgument
    );
    let now = Some(SystemTime::now().into());
    let _ = client
        .configure(ConfigureRequest {
            deadline: now,
            ..Default::default()
        })
        .await;
    assert_eq!(runtime.wait().await.code(), Some(0));
    assert_eq!(ended(&runtime), "deadline");
}
