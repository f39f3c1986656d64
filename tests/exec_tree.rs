//! A kill or a timeout takes the whole process tree, however its processes hide, and nothing else.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

use std::{fs, time::Duration};

use sandgate_proto::{
    runtime::v1::{
        ExecExit, ExecInfo, ExecOffsets, ExecSignal, ExecSpec, ExecState, GetExecRequest, SignalExecRequest,
        exec_exit::Status,
    },
    v1::ErrorReason,
};
use sandgate_tests::{
    Client, Output, Runtime, argv, collect, new_id,
    procs::{children, mark, marked, until},
    reason, run_request, shell, start_request,
};

const KILL: i32 = 9;
const TERM: i32 = 15;
const LIMIT: Duration = Duration::from_secs(120);

/// A way for processes to hide from whoever wants to end them.
struct Way {
    name: &'static str,
    spec: ExecSpec,
    /// Processes there are when all hide.
    processes: usize,
    /// Those of them that are stopped.
    stopped: usize,
    /// What ends the program itself at a timeout.
    ended_by: i32,
}

fn way(name: &'static str, script: &str, processes: usize) -> Way {
    Way {
        name,
        spec: shell(script),
        processes,
        stopped: 0,
        ended_by: TERM,
    }
}

fn ways() -> Vec<Way> {
    let ptrace = if cfg!(target_arch = "x86_64") { 101 } else { 117 };
    let exit = if cfg!(target_arch = "x86_64") { 60 } else { 93 };
    let traced = format!("if (!fork) {{ syscall({ptrace}, 0, 0, 0, 0); kill 'STOP', $$; }} sleep 1000 while 1;");
    let headless =
        format!("use threads; if (!fork) {{ threads->create(sub {{ sleep 1000 }}); syscall({exit}, 0); }} sleep 1000;");
    let relay = "if (!fork) { for (;;) { exit if fork; setpgrp; } } sleep 1000;";
    vec![
        way("setsid", "setsid sleep 1000 & exec sleep 1000", 2),
        way("double fork", "(sleep 1000 &); exec sleep 1000", 2),
        way("nohup", "nohup sleep 1000 >/dev/null 2>&1 & exec sleep 1000", 2),
        Way {
            spec: argv(&["bash", "-c", "set -m; sleep 1000 & disown -a; exec sleep 1000"]),
            ..way("disown", "", 2)
        },
        way(
            "daemon",
            "setsid sh -c 'cd /; exec <&- >&- 2>&-; umask 0; (exec sleep 1000 &)'; exec sleep 1000",
            2,
        ),
        Way {
            ended_by: KILL,
            ..way(
                "trapped TERM",
                "trap '' TERM INT HUP; sleep 1000 & sleep 1000 & wait",
                3,
            )
        },
        Way {
            stopped: 2,
            ..way(
                "stopped",
                "sh -c 'kill -STOP $$; exec sleep 1000' & kill -STOP $$; sleep 1000",
                2,
            )
        },
        way(
            "fork storm",
            "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; wait",
            201,
        ),
        way("holds the pipe", "(trap '' TERM; exec sleep 1000) & exec sleep 1000", 2),
        Way {
            stopped: 1,
            spec: argv(&["perl", "-e", &traced]),
            ..way("traced", "", 2)
        },
        // Beyond the ten. The first thread is a zombie, and another lives on.
        Way {
            spec: argv(&["perl", "-e", &headless]),
            ..way("headless", "", 2)
        },
        // Each process lives only until it has forked the next, so it is seldom seen; that it is gone shows in the end of
        // the output, which it holds open.
        Way {
            spec: argv(&["perl", "-e", relay]),
            ..way("relay", "", 1)
        },
    ]
}

async fn runtime(cgroups: bool) -> Runtime {
    Runtime::with_cgroups(cgroups).await
}

async fn signal(client: &mut Client, id: &str, signal: i32) -> Result<u32, tonic::Status> {
    let signal = Some(ExecSignal { signal });
    let request = SignalExecRequest {
        exec_id: id.to_owned(),
        signal,
        ..Default::default()
    };
    client
        .signal_exec(request)
        .await
        .map(|answer| answer.into_inner().processes)
}

async fn get(client: &mut Client, id: &str) -> ExecInfo {
    let request = GetExecRequest { exec_id: id.to_owned() };
    client.get_exec(request).await.unwrap().into_inner().exec.unwrap()
}

async fn start(client: &mut Client, spec: ExecSpec) -> String {
    let id = new_id("tree");
    let answer = client
        .start_exec(start_request(&id, mark(spec, &id)))
        .await
        .unwrap()
        .into_inner();
    assert!(answer.started && answer.exec.unwrap().state() == ExecState::Running);
    id
}

/// Waits until all processes of a way are where they hide.
async fn hidden(way: &Way, id: &str) {
    until(way.name, || {
        let found = marked(id);
        let stopped = found.iter().filter(|process| "Tt".contains(process.state)).count();
        found.len() >= way.processes && stopped >= way.stopped
    })
    .await;
}

/// Waits until the runtime itself knows that nothing is left.
async fn over(client: &mut Client, id: &str) -> ExecInfo {
    loop {
        let exec = get(client, id).await;
        if !exec.processes_alive {
            return exec;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn output(client: &Client, id: &str) -> Output {
    collect(&mut client.clone(), id, ExecOffsets::default()).await
}

fn status(exit: Option<&ExecExit>) -> Option<Status> {
    exit.unwrap().status
}

#[tokio::test]
async fn a_keeper_that_its_command_stops_or_kills_sets_nothing_free() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let other = bystander(&mut client).await;
    let id = start(
        &mut client,
        shell("(setsid sleep 1000 &); kill -STOP $PPID; exec sleep 1000"),
    )
    .await;
    until("a stopped keeper", || marked(&id).len() == 2).await;
    tokio::time::timeout(LIMIT, signal(&mut client, &id, KILL))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(marked(&id), []);
    // At once, when it may not even have told of the start, and later.
    for pause in ["", "sleep 0.3; "] {
        let script = format!("(setsid sleep 1000 &); (sleep 1000 &); {pause}kill -KILL $PPID; exec sleep 1000");
        let id = new_id("tree");
        client
            .start_exec(start_request(&id, mark(shell(script), &id)))
            .await
            .unwrap();
        let output = tokio::time::timeout(LIMIT, output(&client, &id)).await.unwrap();
        match output.exit {
            Some(exit) => assert!(matches!(exit.status, Some(Status::Lost(_))), "{exit:?}"),
            None => assert!(output.start_failure.is_some() && pause.is_empty(), "{output:?}"),
        }
        assert_eq!(marked(&id), []);
    }
    check_bystander(&mut client, &other).await;
}

async fn bystander(client: &mut Client) -> String {
    let id = start(client, shell("(setsid sleep 1000 &); exec sleep 1000")).await;
    until("a bystander", || marked(&id).len() == 2).await;
    id
}

async fn check_bystander(client: &mut Client, id: &str) {
    assert_eq!(get(client, id).await.state(), ExecState::Running);
    assert_eq!(marked(id).len(), 2, "a process of another exec is gone");
    assert_eq!(signal(client, id, KILL).await.unwrap(), 2);
}

async fn kill_leaves_nothing(cgroups: bool) {
    let runtime = runtime(cgroups).await;
    let mut client = runtime.connect().await;
    let other = bystander(&mut client).await;
    for way in ways() {
        let id = start(&mut client, way.spec.clone()).await;
        hidden(&way, &id).await;
        let reached = tokio::time::timeout(LIMIT / 2, signal(&mut client, &id, KILL))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(marked(&id), [], "{}: left after a kill", way.name);
        assert!(reached as usize >= way.processes, "{}: {reached} reached", way.name);
        let output = output(&client, &id).await;
        let exit = output.exit.as_ref();
        assert_eq!(status(exit), Some(Status::Signal(KILL)), "{}", way.name);
        assert!(!exit.unwrap().timed_out && output.ended.is_some());
        over(&mut client, &id).await;
        let again = signal(&mut client, &id, KILL).await.unwrap_err();
        assert_eq!(reason(&again), ErrorReason::ExecNotRunning);
    }
    check_bystander(&mut client, &other).await;
}

async fn timeout_leaves_nothing(cgroups: bool) {
    let runtime = runtime(cgroups).await;
    let mut client = runtime.connect().await;
    let other = bystander(&mut client).await;
    let mut started = Vec::new();
    for mut way in ways() {
        // Long enough for all to hide on a busy machine.
        way.spec.timeout = Some(prost_types::Duration { seconds: 8, nanos: 0 });
        way.spec.kill_grace = Some(prost_types::Duration { seconds: 1, nanos: 0 });
        let id = start(&mut client, way.spec.clone()).await;
        started.push((way, id));
    }
    for (way, id) in &started {
        hidden(way, id).await;
    }
    for (way, id) in &started {
        let output = output(&client, id).await;
        over(&mut client, id).await;
        assert_eq!(marked(id), [], "{}: left after a timeout", way.name);
        let exit = output.exit.as_ref();
        assert_eq!(status(exit), Some(Status::Signal(way.ended_by)), "{}", way.name);
        assert!(exit.unwrap().timed_out && output.ended.is_some());
    }
    check_bystander(&mut client, &other).await;
}

#[tokio::test]
async fn a_kill_leaves_nothing() {
    tokio::time::timeout(LIMIT, kill_leaves_nothing(false)).await.unwrap();
}

#[tokio::test]
async fn a_kill_leaves_nothing_with_cgroups() {
    tokio::time::timeout(LIMIT, kill_leaves_nothing(true)).await.unwrap();
}

#[tokio::test]
async fn a_timeout_leaves_nothing() {
    tokio::time::timeout(LIMIT, timeout_leaves_nothing(false))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_timeout_leaves_nothing_with_cgroups() {
    tokio::time::timeout(LIMIT, timeout_leaves_nothing(true)).await.unwrap();
}

#[tokio::test]
async fn signals_after_the_exit_reach_what_was_left() {
    for cgroups in [false, true] {
        let runtime = runtime(cgroups).await;
        let mut client = runtime.connect().await;
        for (sent, script) in [
            (KILL, "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & exit 7"),
            (TERM, "(setsid sleep 1000 &); sleep 1000 & exit 7"),
        ] {
            let id = new_id("left");
            // The exit comes although the pipes are still held.
            let request = run_request(&id, mark(shell(script), &id));
            let exec = client.run(request).await.unwrap().into_inner().exec.unwrap();
            assert_eq!(status(exec.exit.as_ref()), Some(Status::Code(7)));
            assert!(exec.processes_alive && !exec.output_ended);
            until("both are left", || marked(&id).len() == 2).await;
            assert_eq!(signal(&mut client, &id, sent).await.unwrap(), 2);
            let output = output(&client, &id).await;
            assert!(output.ended.is_some());
            let exec = over(&mut client, &id).await;
            assert_eq!(marked(&id), []);
            assert_eq!(status(exec.exit.as_ref()), Some(Status::Code(7)));
        }
    }
}

#[tokio::test]
async fn term_reaches_every_process() {
    for cgroups in [false, true] {
        let runtime = runtime(cgroups).await;
        let mut client = runtime.connect().await;
        // Each says that it was reached; the shells wake up from `wait`.
        let says = "trap 'echo reached; exit 0' TERM; echo ready; sleep 1000 & wait";
        let script = format!("for i in 1 2 3; do setsid sh -c \"{says}\" & done; {says}");
        let id = start(&mut client, shell(script)).await;
        while get(&mut client, &id).await.written.unwrap().stdout < 4 * "ready\n".len() as u64 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        until("all sleep", || marked(&id).len() == 8).await;
        assert_eq!(signal(&mut client, &id, TERM).await.unwrap(), 8);
        let output = output(&client, &id).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("reached").count(), 4, "{text}");
        assert_eq!(status(output.exit.as_ref()), Some(Status::Code(0)));
    }
}

#[tokio::test]
async fn a_program_may_end_itself_in_the_grace_time() {
    for cgroups in [false, true] {
        let runtime = runtime(cgroups).await;
        let mut client = runtime.connect().await;
        let mut spec = shell("trap 'echo bye; exit 42' TERM; while :; do sleep 0.01; done");
        spec.timeout = Some(prost_types::Duration {
            seconds: 0,
            nanos: 300_000_000,
        });
        spec.kill_grace = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let answer = client
            .run(run_request(&new_id("grace"), spec))
            .await
            .unwrap()
            .into_inner();
        let exit = answer.exec.unwrap().exit.unwrap();
        assert_eq!((exit.status, exit.timed_out), (Some(Status::Code(42)), true));
        assert_eq!(&answer.stdout.unwrap().head[..], b"bye\n");
        // In time: nothing of it is told.
        let mut spec = shell("exit 3");
        spec.timeout = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let answer = client
            .run(run_request(&new_id("quick"), spec))
            .await
            .unwrap()
            .into_inner();
        let exit = answer.exec.unwrap().exit.unwrap();
        assert_eq!((exit.status, exit.timed_out), (Some(Status::Code(3)), false));
    }
}

/// Whoever is told of a timeout can use again what the command had, at once.
#[tokio::test]
async fn a_timeout_is_answered_when_nothing_is_left() {
    for cgroups in [false, true] {
        let runtime = runtime(cgroups).await;
        let mut client = runtime.connect().await;
        let mut spec = shell("(trap '' TERM; while :; do sleep 0.01; done) & echo on; wait");
        spec.timeout = Some(prost_types::Duration {
            seconds: 0,
            nanos: 300_000_000,
        });
        spec.kill_grace = spec.timeout;
        let answer = client
            .run(run_request(&new_id("stubborn"), spec))
            .await
            .unwrap()
            .into_inner();
        let exec = answer.exec.unwrap();
        let exit = exec.exit.unwrap();
        assert_eq!((exit.status, exit.timed_out), (Some(Status::Signal(15)), true));
        assert!(!exec.processes_alive);
        assert_eq!(&answer.stdout.unwrap().head[..], b"on\n");
    }
}

#[tokio::test]
async fn a_signal_to_nobody_is_refused() {
    for cgroups in [false, true] {
        let runtime = runtime(cgroups).await;
        let mut client = runtime.connect().await;
        let id = new_id("done");
        client.run(run_request(&id, shell("exit 0"))).await.unwrap();
        over(&mut client, &id).await;
        for sent in [KILL, TERM] {
            let refused = signal(&mut client, &id, sent).await.unwrap_err();
            assert_eq!(reason(&refused), ErrorReason::ExecNotRunning);
        }
        let missing = new_id("failed");
        client.run(run_request(&missing, argv(&["/no/such"]))).await.unwrap();
        assert_eq!(
            reason(&signal(&mut client, &missing, KILL).await.unwrap_err()),
            ErrorReason::ExecNotRunning
        );
        assert_eq!(
            reason(&signal(&mut client, "nobody", KILL).await.unwrap_err()),
            ErrorReason::ExecNotFound
        );
        let running = start(&mut client, shell("exec sleep 1000")).await;
        for wrong in [0, -1, 65] {
            let refused = signal(&mut client, &running, wrong).await.unwrap_err();
            assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
        }
        // A signal of the real-time kind ends a program that does not expect it, too.
        assert_eq!(signal(&mut client, &running, 40).await.unwrap(), 1);
        assert_eq!(
            status(output(&client, &running).await.exit.as_ref()),
            Some(Status::Signal(40))
        );
    }
}

#[tokio::test]
async fn orphans_are_reaped() {
    for cgroups in [false, true] {
        let runtime = runtime(cgroups).await;
        let mut client = runtime.connect().await;
        for _ in 0..10 {
            let script = "for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.0$i &); (setsid sh -c 'exit 3' &); done";
            client
                .run(run_request(&new_id("orphans"), shell(script)))
                .await
                .unwrap();
        }
        until("no child is left", || children(runtime.pid()).is_empty()).await;
    }
}

#[tokio::test]
async fn groups_serve_one_exec_after_the_other_and_go_when_none_comes() {
    let runtime = runtime(true).await;
    let mut client = runtime.connect().await;
    let id = start(&mut client, shell("exec sleep 1000")).await;
    for _ in 0..5 {
        client
            .run(run_request(&new_id("group"), shell("exit 0")))
            .await
            .unwrap();
    }
    client
        .run(run_request(&new_id("group"), argv(&["/no/such"])))
        .await
        .unwrap();
    assert!(runtime.cgroup().groups().len() <= 2, "{:?}", runtime.cgroup().groups());
    until("only the living has a group", || runtime.cgroup().groups().len() == 1).await;
    assert_eq!(signal(&mut client, &id, KILL).await.unwrap(), 1);
    until("no group is left", || runtime.cgroup().groups().is_empty()).await;
    if let Some(memory) = &runtime.cgroup().memory {
        until("no memory group is left", || {
            fs::read_dir(memory)
                .unwrap()
                .flatten()
                .all(|entry| !entry.path().is_dir())
        })
        .await;
    }
}

#[tokio::test]
async fn who_is_over_is_not_mistaken_for_who_has_its_group_now() {
    let runtime = runtime(true).await;
    let mut client = runtime.connect().await;
    let over = new_id("over");
    client.run(run_request(&over, shell("exit 0"))).await.unwrap();
    let living = start(&mut client, shell("exec sleep 1000")).await;
    assert_eq!(runtime.cgroup().groups().len(), 1, "it has the group of the one before");
    // Refused or in vain, but never to another.
    assert_eq!(signal(&mut client, &over, KILL).await.unwrap_or(0), 0);
    assert_eq!(get(&mut client, &living).await.state(), ExecState::Running);
    assert_eq!(signal(&mut client, &living, KILL).await.unwrap(), 1);
    // Nor does a kill reach whoever comes after.
    for _ in 0..3 {
        let next = client.run(run_request(&new_id("next"), shell("exit 5"))).await.unwrap();
        let exit = next.into_inner().exec.unwrap().exit.unwrap();
        assert_eq!(exit.status, Some(Status::Code(5)));
    }
}

#[tokio::test]
async fn processes_killed_for_memory_are_counted() {
    let runtime = runtime(true).await;
    let mut client = runtime.connect().await;
    let memory = runtime.cgroup().memory.clone();
    let memory = memory.expect("this test needs a v1 memory controller, to set a limit");
    fs::write(memory.join("memory.limit_in_bytes"), (64 << 20).to_string()).unwrap();
    // No swap to flee to.
    let _ = fs::write(memory.join("memory.memsw.limit_in_bytes"), (64 << 20).to_string());
    let other = bystander(&mut client).await;
    let bomb = "perl -e 'my @all; push @all, \"x\" x (1 << 20) while 1'";
    // Under a shell the shell survives: only the count tells.
    let answer = client
        .run(run_request(&new_id("bomb"), shell(format!("{bomb}; exit 0"))))
        .await
        .unwrap()
        .into_inner();
    let exit = answer.exec.unwrap().exit.unwrap();
    assert_eq!((exit.status, exit.out_of_memory), (Some(Status::Code(0)), 1));
    let answer = client
        .run(run_request(&new_id("bomb"), shell(format!("exec {bomb}"))))
        .await
        .unwrap()
        .into_inner();
    let exit = answer.exec.unwrap().exit.unwrap();
    assert_eq!((exit.status, exit.out_of_memory), (Some(Status::Signal(KILL)), 1));
    let answer = client
        .run(run_request(&new_id("small"), shell("exit 0")))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.exec.unwrap().exit.unwrap().out_of_memory, 0);
    check_bystander(&mut client, &other).await;
}

#[tokio::test]
async fn nothing_outlives_a_killed_runtime() {
    for cgroups in [false, true] {
        let mut runtime = runtime(cgroups).await;
        let mut client = runtime.connect().await;
        let mut started = Vec::new();
        for way in ways() {
            let id = start(&mut client, way.spec.clone()).await;
            hidden(&way, &id).await;
            started.push((way, id));
        }
        runtime.kill();
        runtime.restart().await;
        let mut client = runtime.connect().await;
        for (way, id) in started {
            until(way.name, || marked(&id).is_empty()).await;
            assert!(matches!(
                status(get(&mut client, &id).await.exit.as_ref()),
                Some(Status::Lost(_))
            ));
        }
    }
}
