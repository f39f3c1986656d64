//! The runtime's own life: what it is, when it ends, and what its callers can't do to it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

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
    Client, Runtime, RuntimeOptions, binary, collect, connect_to, new_id,
    procs::{children, mark, marked, until},
    reason, run_request, seeded, shell, start_request,
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

/// A little-endian number of that many bytes.
fn number(bytes: &[u8], at: usize, length: usize) -> usize {
    bytes[at..at + length]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

#[test]
fn the_binary_is_static_stripped_and_small() {
    const INTERPRETER: usize = 3;
    const SYMBOLS: usize = 2;
    let elf = fs::read(binary()).unwrap();
    assert_eq!((&elf[..4], elf[4]), (&b"\x7fELF"[..], 2), "an ELF file of 64 bits");
    assert!(elf.len() < 8_000_000, "{} bytes", elf.len());
    let kinds = |table: usize, size: usize, count: usize, field: usize| {
        let (start, size, count) = (number(&elf, table, 8), number(&elf, size, 2), number(&elf, count, 2));
        (0..count)
            .map(|place| number(&elf, start + place * size + field, 4))
            .collect::<Vec<_>>()
    };
    let segments = kinds(32, 54, 56, 0);
    let sections = kinds(40, 58, 60, 4);
    assert!(
        !segments.is_empty() && !segments.contains(&INTERPRETER),
        "it needs a dynamic loader"
    );
    assert!(!sections.contains(&SYMBOLS), "it has symbols");
}

#[tokio::test]
async fn it_needs_little_memory_when_idle() {
    for cgroups in [false, true] {
        let runtime = Runtime::start_with(RuntimeOptions {
            cgroups,
            ..Default::default()
        })
        .await;
        let memory = runtime.own_memory();
        println!("{} KiB", memory / 1024);
        assert!(memory < 2 << 20, "{memory} bytes");
    }
}

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
    let grace = Some(prost_types::Duration { seconds: 30, nanos: 0 });
    client
        .stop(StopRequest {
            grace,
            ..Default::default()
        })
        .await
        .unwrap();
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

async fn written(client: &mut Client, id: &str) -> u64 {
    let request = GetExecRequest { exec_id: id.to_owned() };
    client
        .get_exec(request)
        .await
        .unwrap()
        .into_inner()
        .exec
        .unwrap()
        .written
        .unwrap()
        .stdout
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
    let grace = Some(prost_types::Duration { seconds: 20, nanos: 0 });
    client
        .stop(StopRequest {
            grace,
            ..Default::default()
        })
        .await
        .unwrap();
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

#[tokio::test]
async fn a_second_runtime_on_the_same_state_refuses_to_start() {
    let runtime = Runtime::start().await;
    let mut second = Command::new(binary());
    second.arg("--socket").arg(runtime.workspace().join("other"));
    second.arg("--state-dir").arg(runtime.state_dir());
    let output = tokio::task::spawn_blocking(move || second.output().unwrap())
        .await
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && message.contains("another runtime uses it"),
        "{message}"
    );
    let mut client = runtime.connect().await;
    assert_eq!(stdout(&mut client, "echo well").await, "well\n");
}

#[test]
fn wrong_arguments_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).into_os_string().into_string().unwrap();
    let (socket, state) = (
        format!("--socket={}", path("socket")),
        format!("--state-dir={}", path("state")),
    );
    let all = |more: &'static str| vec![socket.clone(), state.clone(), more.to_owned()];
    for (args, named) in [
        (vec![], "--state-dir"),
        (vec![state.clone()], "--socket"),
        (all("--no-such-flag"), "--no-such-flag"),
        (all("--deadline=soon"), "--deadline"),
        (all("--idle-limit=5"), "--idle-limit"),
        (all("--max-alive=0"), "--max-alive"),
        (all("--retain-bytes=much"), "--retain-bytes"),
        (all("--user=no-such-user"), "--user"),
        (all("--log=loud"), "--log"),
        (all("--memory-cgroup=/x"), "--cgroup"),
        (all("--socket-fd=5"), "--socket-fd"),
        (vec![state.clone(), "--socket-fd=77".into()], "--socket-fd"),
        (
            vec![state.clone(), format!("--socket={}", path("no/such/socket"))],
            "--socket",
        ),
        (
            vec![socket.clone(), "--state-dir=/dev/null/state".into()],
            "--state-dir",
        ),
    ] {
        let output = Command::new(binary())
            .args(&args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && output.status.code().is_some(),
            "{args:?}: {}",
            output.status
        );
        assert!(message.contains(named), "{args:?}: {message}");
    }
}

#[tokio::test]
async fn it_serves_on_an_inherited_socket() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    fcntl_setfd(&listener, FdFlags::empty()).unwrap();
    let mut command = Command::new(binary());
    command.arg(format!("--socket-fd={}", listener.as_raw_fd()));
    command
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .arg("--cwd")
        .arg(dir.path());
    let mut runtime = command.stdin(Stdio::null()).spawn().unwrap();
    // Before it serves, callers wait in the listener's queue: nobody is turned away.
    let mut client = connect_to(socket).await.unwrap();
    let number = listener.as_raw_fd();
    drop(listener);
    let list = stdout(&mut client, "ls /proc/self/fd").await;
    assert!(
        !list.lines().any(|fd| fd == number.to_string() && number > 3),
        "the command got the socket: {list}"
    );
    client.stop(StopRequest::default()).await.unwrap();
    let status = tokio::task::spawn_blocking(move || runtime.wait().unwrap())
        .await
        .unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn as_pid_1_it_runs_commands_and_reaps_orphans() {
    for cgroups in [false, true] {
        let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
            .map(Into::into)
            .to_vec();
        let runtime = Runtime::start_with(RuntimeOptions {
            cgroups,
            wrapper,
            ..Default::default()
        })
        .await;
        let mut client = runtime.connect().await;
        assert_eq!(
            stdout(&mut client, "tr '\\0' ' ' < /proc/1/cmdline | grep -c state-dir").await,
            "1\n"
        );
        let script = "for i in 1 2 3 4 5; do (setsid sh -c 'sleep 0.1; exit 3' &); (sleep 0.05 &); done; echo ran";
        for _ in 0..5 {
            assert_eq!(stdout(&mut client, script).await, "ran\n");
        }
        let first = children(runtime.pid());
        assert_eq!(first.len(), 1, "unshare has one child");
        let first = u32::try_from(first[0].pid).unwrap();
        until("no child of PID 1 is left", || children(first).is_empty()).await;
        let id = start(&mut client, "(setsid sleep 1000 &); exec sleep 1000").await;
        until("both run", || marked(&id).len() == 2).await;
        client.stop(StopRequest::default()).await.unwrap();
        until("all are gone", || marked(&id).is_empty()).await;
    }
}

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
        .args(["--exact", "callers_that_vanish_leave_execs_running"])
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
    let kept = client
        .get_exec(GetExecRequest { exec_id: "kept".into() })
        .await
        .unwrap()
        .into_inner()
        .exec
        .unwrap();
    assert_eq!(kept.state(), ExecState::Running);
}
