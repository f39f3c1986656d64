//! Fifty callers and a killed runtime: an id runs once, for requests that count as the same.

use super::*;

const CALLERS: usize = 50;
const ROUNDS: usize = 30;

/// Starts it, again and again if the runtime goes away, until somebody answers.
async fn start_surely(socket: PathBuf, request: StartExecRequest) -> (ExecInfo, bool) {
    loop {
        if let Some(mut client) = connect_to(socket.clone()).await {
            match client.start_exec(request.clone()).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    return (answer.exec.unwrap(), answer.started);
                }
                // The runtime's own refusals carry a reason, and none is due here.
                Err(status) => assert!(
                    matches!(
                        status.code(),
                        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
                    ),
                    "{status:?}"
                ),
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn many_starts(runtime: &Runtime, request: &StartExecRequest) -> JoinSet<(ExecInfo, bool)> {
    (0..CALLERS)
        .map(|_| start_surely(runtime.socket(), request.clone()))
        .collect()
}

#[tokio::test]
async fn fifty_callers_start_it_once() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        for _ in 0..5 {
            let id = new_id("once");
            let trace = runtime.workspace().join(&id);
            let answers = many_starts(&runtime, &start_request(&id, traced(&trace)))
                .join_all()
                .await;
            assert_eq!(answers.iter().filter(|(_, started)| *started).count(), 1);
            let first = &answers[0].0;
            assert!(
                answers
                    .iter()
                    .all(|(exec, _)| exec.pid == first.pid && exec.started_at == first.started_at)
            );
            let exec = exited(&mut client, &id).await;
            assert_eq!((exec.exit.unwrap().status, runs(&trace)), (Some(Status::Code(0)), 1));
        }
    }
}

#[tokio::test]
async fn it_runs_once_though_the_runtime_is_killed() {
    let mut random = seeded();
    for cgroups in [false, true] {
        let mut runtime = Runtime::with_cgroups(cgroups).await;
        let mut fates = [0; 2];
        for round in 0..ROUNDS / 2 {
            let id = new_id("once");
            let trace = runtime.workspace().join(&id);
            let callers = many_starts(&runtime, &start_request(&id, traced(&trace)));
            tokio::time::sleep(Duration::from_micros(random.random_range(0..20_000))).await;
            runtime.kill();
            runtime.restart().await;
            let answers = callers.join_all().await;
            let mut client = runtime.connect().await;
            let exec = exited(&mut client, &id).await;
            let started = answers.iter().filter(|(_, started)| *started).count();
            assert!(
                started <= 1,
                "round {round}: {started} callers were told that they had started it"
            );
            match exec.exit.unwrap().status {
                Some(Status::Code(0)) => {
                    assert_eq!(runs(&trace), 1, "round {round}");
                    fates[0] += 1;
                }
                Some(Status::Lost(_)) => {
                    assert!(runs(&trace) <= 1, "round {round}");
                    fates[1] += 1;
                }
                other => panic!("round {round}: {other:?}"),
            }
            // Neither does it run later.
            let (again, started) = start_surely(runtime.socket(), start_request(&id, traced(&trace))).await;
            assert!(!started && again.state() == ExecState::Exited && runs(&trace) <= 1);
        }
        println!("ended, lost: {fates:?}");
    }
}

#[tokio::test]
async fn what_counts_as_the_same_request() {
    let mut runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let var = |name: &str, value: &str| EnvVar {
        name: name.into(),
        value: value.into(),
        ..Default::default()
    };
    let size = |columns| Some(PtySize { columns, rows: 10 });
    let first = ExecSpec {
        env: vec![var("A", "1"), var("B", "2")],
        pty: Some(Pty {
            size: size(80),
            ..Default::default()
        }),
        ..argv(&["true"])
    };
    let same = ExecSpec {
        env: vec![var("B", "2"), var("A", "1")],
        pty: Some(Pty {
            size: size(99),
            ..Default::default()
        }),
        ..first.clone()
    };
    let others = [
        ExecSpec {
            env: vec![var("A", "1"), var("B", "3")],
            ..first.clone()
        },
        ExecSpec {
            env: vec![var("A", "1"), var("A", "2"), var("B", "2")],
            ..first.clone()
        },
        ExecSpec {
            cwd: "/".into(),
            ..first.clone()
        },
        ExecSpec {
            umask: Some(0),
            ..first.clone()
        },
        ExecSpec {
            timeout: millis(999),
            ..first.clone()
        },
        ExecSpec {
            pty: None,
            ..first.clone()
        },
        ExecSpec {
            user: "nobody".into(),
            ..first.clone()
        },
        ExecSpec {
            clear_env: true,
            ..first.clone()
        },
        ExecSpec {
            retain_bytes: 1 << 20,
            ..first.clone()
        },
        ExecSpec {
            env: first.env.clone(),
            pty: first.pty.clone(),
            ..argv(&["true", ""])
        },
        ExecSpec {
            env: first.env.clone(),
            pty: first.pty.clone(),
            ..shell("true")
        },
    ];
    let id = new_id("same");
    assert!(
        client
            .start_exec(start_request(&id, first.clone()))
            .await
            .unwrap()
            .into_inner()
            .started
    );
    for restarted in [false, true] {
        if restarted {
            runtime.kill();
            runtime.restart().await;
            client = runtime.connect().await;
        }
        for spec in [&first, &same] {
            assert!(
                !client
                    .start_exec(start_request(&id, spec.clone()))
                    .await
                    .unwrap()
                    .into_inner()
                    .started
            );
        }
        for other in &others {
            let refused = client.start_exec(start_request(&id, other.clone())).await.unwrap_err();
            assert_eq!(reason(&refused), ErrorReason::ExecAlreadyExists, "{other:?}");
            assert_eq!(refused.code(), Code::AlreadyExists);
        }
    }
}
