//! What callers can't do: harm others by hostility, or execs by vanishing.

use super::*;

#[tokio::test]
async fn hostile_callers_harm_nobody() {
    const STREAMS: usize = 500;
    let mut random = seeded();
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let id = start(&mut client, "exec cat /dev/zero").await;
    // Opens many streams, then reads nothing more of its connection.
    let (socket, followed) = (runtime.socket(), id.clone());
    let (opened, all_open) = tokio::sync::oneshot::channel();
    let (close, closed) = std::sync::mpsc::channel::<()>();
    let stuck = thread::spawn(move || {
        let scheduler = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let streams = scheduler.block_on(async {
            let client = connect_to(socket).await.unwrap();
            let open = |_| {
                let mut client = client.clone();
                let targets = vec![FollowTarget {
                    exec_id: followed.clone(),
                    ..Default::default()
                }];
                async move {
                    client
                        .follow_exec(FollowExecRequest {
                            targets,
                            ..Default::default()
                        })
                        .await
                        .unwrap()
                }
            };
            (0..STREAMS)
                .map(open)
                .collect::<tokio::task::JoinSet<_>>()
                .join_all()
                .await
        });
        opened.send(streams.len()).unwrap();
        let _ = closed.recv();
    });
    assert_eq!(tokio::time::timeout(LIMIT, all_open).await.unwrap().unwrap(), STREAMS);
    // Noise, half a greeting, a promise of a huge frame, silence.
    let mut connections = Vec::new();
    for kind in 0..80 {
        let mut connection = UnixStream::connect(runtime.socket()).unwrap();
        connection.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut noise = vec![0; 32 << 10];
        random.fill_bytes(&mut noise);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let bytes = match kind % 5 {
            0 => noise,
            1 => preface[..7].to_vec(),
            2 => [preface, noise].concat(),
            3 => [preface, vec![0xff; 9]].concat(),
            _ => vec![],
        };
        let _ = connection.write_all(&bytes);
        connections.push(connection);
    }
    let mut honest = runtime.connect().await;
    for number in 0..20 {
        assert_eq!(
            stdout(&mut honest, &format!("echo {number}")).await,
            format!("{number}\n")
        );
    }
    // What the transport holds for a stream that is not read is bounded, a stream.
    let (memory, bound) = (runtime.own_memory(), STREAMS as u64 * (2 << 20));
    println!("{} MiB", memory >> 20);
    assert!(memory < bound, "{memory} bytes");
    drop(connections);
    close.send(()).unwrap();
    stuck.join().unwrap();
    assert_eq!(stdout(&mut honest, "echo still").await, "still\n");
    assert_eq!(marked(&id).len(), 1);
}

const CALLER: &str = "SANDGATE_TEST_CALLER";

#[tokio::test]
async fn callers_that_vanish_leave_execs_running() {
    // This very test in a second process is the caller that vanishes.
    if let Some(socket) = env::var_os(CALLER) {
        let mut client = connect_to(PathBuf::from(socket)).await.unwrap();
        let follow = client
            .start_exec(start_request(
                "kept",
                mark(shell("echo up; exec sleep 1000"), "kept-by"),
            ))
            .await;
        let mut run = run_request("ran", mark(shell("echo up; sleep 2; echo end"), "ran-by"));
        run.max_wait = Some(prost_types::Duration {
            seconds: 3_000,
            nanos: 0,
        });
        let _ = (follow, client.run(run).await);
        return;
    }
    let runtime = Runtime::start().await;
    let mut caller = Command::new(env::current_exe().unwrap())
        .args(["--exact", "callers::callers_that_vanish_leave_execs_running"])
        .env(CALLER, runtime.socket())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut client = runtime.connect().await;
    for id in ["kept", "ran"] {
        let looked = async {
            while client.get_exec(GetExecRequest { exec_id: id.into() }).await.is_err()
                || written(&mut client, id).await == 0
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, looked).await.unwrap();
    }
    caller.kill().unwrap();
    caller.wait().unwrap();
    let output = collect(&mut client, "ran", ExecOffsets::default()).await;
    assert_eq!(
        (&output.stdout[..], output.exit.unwrap().status),
        (&b"up\nend\n"[..], Some(Status::Code(0)))
    );
    assert_eq!(get(&mut client, "kept").await.state(), ExecState::Running);
}
