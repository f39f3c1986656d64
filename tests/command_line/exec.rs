//! `exec`: what comes out, and what it exits with.

use serde_json::{Value, json};

use super::stage::{Stage, fields, noise};

const EXIT: [&str; 11] = [
    "code",
    "duration_seconds",
    "exited_at",
    "lost",
    "max_rss_bytes",
    "out_of_memory",
    "signal",
    "signal_name",
    "system_seconds",
    "timed_out",
    "user_seconds",
];

#[tokio::test]
async fn it_exits_as_the_command_did() {
    let stage = Stage::new().await;
    stage
        .sh("echo 'no program' > plain; printf '\\177ELF nonsense' > broken; chmod +x broken")
        .await;
    for (options, command, code, told) in [
        (&[][..], &["true"][..], 0, ""),
        (&[], &["sh", "-c", "exit 7"], 7, ""),
        (&[], &["sh", "-c", "exit 255"], 255, ""),
        (&[], &["sh", "-c", "kill -KILL $$"], 137, ""),
        (&[], &["sh", "-c", "kill -TERM $$"], 143, ""),
        // What the command itself calls 125 or 127 is its own business.
        (&[], &["sh", "-c", "exit 125"], 125, ""),
        (
            &["--timeout", "100ms"],
            &["sleep", "1000"],
            124,
            "sandgate: the command timed out\n",
        ),
        (
            &[],
            &["/workspace/plain"],
            126,
            "sandgate: the command can't be started: /workspace/plain: Permission denied (os error 13)\n",
        ),
        (
            &[],
            &["/workspace/broken"],
            126,
            "sandgate: the command can't be started: /workspace/broken: not a program the kernel runs; does the \
             script lack its #! line?\n",
        ),
        (
            &[],
            &["no-such-program"],
            127,
            "sandgate: the command can't be started: no-such-program: no such program\n",
        ),
        (
            &[],
            &["/no/such/program"],
            127,
            "sandgate: the command can't be started: /no/such/program: no such program\n",
        ),
        (
            &["--cwd", "/nowhere"],
            &["true"],
            125,
            "sandgate: the command can't be started: working directory /nowhere: No such file or directory (os error 2)\n",
        ),
        (
            &["--user", "nobody-at-all"],
            &["true"],
            125,
            "sandgate: the command can't be started: there is no user \"nobody-at-all\"\n",
        ),
    ] {
        let args = [&["exec", "demo"], options, &["--"], command].concat();
        let did = stage.run(&args).await;
        assert_eq!(
            (did.code, did.text().as_str(), did.err.as_str()),
            (Some(code), "", told),
            "{args:?}"
        );
        let (json_code, events) = stage.events(&args).await;
        let last = events.last().unwrap();
        assert_eq!(json_code, Some(code), "{last}");
        match told.starts_with("sandgate: the command can't") {
            true => {
                assert_eq!(
                    (events.len(), fields(last)),
                    (1, vec!["event", "message", "reason"]),
                    "{last}"
                );
                assert_eq!(last["event"], "start_failed");
                assert!(told.contains(last["message"].as_str().unwrap()), "{last}");
            }
            false => {
                assert_eq!((&last["event"], &last["lost"]), (&json!("exited"), &json!(false)));
                assert_eq!(last["timed_out"], code == 124, "{last}");
            }
        }
    }
}

#[tokio::test]
async fn sandgate_failed_is_125() {
    let stage = Stage::new().await;
    for (args, told) in [
        (
            &["exec", "nobody", "--", "true"][..],
            "sandgate: there is no sandbox nobody (SANDBOX_NOT_FOUND, request ID)\n  `sandgate ls` shows those that \
             exist.\n",
        ),
        (
            &["exec", "demo", "--cwd", "relative", "--", "true"],
            "sandgate: spec.cwd: must be absolute (INVALID_ARGUMENT, request ID)\n",
        ),
        (
            &["exec", "demo", "--id", "a b", "--", "true"],
            "sandgate: exec_id: an id matches [A-Za-z0-9_-]{1,64} (INVALID_ARGUMENT, request ID)\n",
        ),
    ] {
        stage.refused(args, 125, told).await;
    }
    stage.ok(&["suspend", "demo"]).await;
    stage
        .refused(
            &["exec", "demo", "--", "true"],
            125,
            "sandgate: sandbox demo is suspended; resume it, or ask for auto_resume (SANDBOX_SUSPENDED, request ID)\n  \
             Bring it back with `sandgate resume`.\n",
        )
        .await;
    assert_eq!(
        stage.ok(&["exec", "demo", "--resume", "--", "echo", "awake"]).await,
        "awake\n"
    );

    // While it ran: it is told to end, as by anybody.
    let mut running = stage.begin(&["exec", "demo", "--", "sh", "-c", "echo ready; exec sleep 1000"]);
    running.until("ready").await;
    stage.ok(&["suspend", "demo"]).await;
    assert_eq!(running.end().await.code, Some(143));
    stage.ok(&["resume", "demo"]).await;
    // When all in it is killed: what became of it is not known, and nothing runs again.
    let mut running = stage.begin(&[
        "exec",
        "demo",
        "--",
        "sh",
        "-c",
        "echo x >> runs; echo ready; sleep 1000",
    ]);
    running.until("ready").await;
    let first = rustix::process::Pid::from_raw(stage.server.sandbox_pid("demo")).unwrap();
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    let did = running.end().await;
    assert_eq!((did.code, did.text().as_str()), (Some(125), "ready\n"), "{did:?}");
    assert!(
        did.told()
            .contains("(SANDBOX_RESTARTED, request ID)\n  Its processes are gone and nothing was run again"),
        "{did:?}"
    );
    assert_eq!(
        stage.ok(&["exec", "demo", "--resume", "--", "cat", "runs"]).await,
        "x\n"
    );
}

#[tokio::test]
async fn each_stream_goes_where_it_belongs() {
    let stage = Stage::new().await;
    let script = "printf 'to out'; printf 'to err' >&2";
    let did = stage.run(&["exec", "demo", "--", "sh", "-c", script]).await;
    assert_eq!(
        (did.code, did.text().as_str(), did.err.as_str()),
        (Some(0), "to out", "to err")
    );

    let (code, events) = stage
        .events(&[
            "exec",
            "demo",
            "--",
            "sh",
            "-c",
            "echo text; printf '\\377' >&2; exit 3",
        ])
        .await;
    assert_eq!(code, Some(3));
    let of = |name: &str| -> Vec<&Value> { events.iter().filter(|event| event["event"] == name).collect() };
    let started = of("started")[0];
    assert_eq!(
        fields(started),
        ["event", "exec_id", "incarnation", "pid", "started_at"]
    );
    assert_eq!(
        *of("stdout")[0],
        json!({"event": "stdout", "offset": 0, "text": "text\n", "base64": null})
    );
    assert_eq!(
        *of("stderr")[0],
        json!({"event": "stderr", "offset": 0, "text": null, "base64": "/w=="})
    );
    let mut exited = of("exited")[0].clone();
    exited.as_object_mut().unwrap().remove("event");
    assert_eq!(fields(&exited), EXIT);
    assert_eq!((&exited["code"], &exited["signal"]), (&json!(3), &Value::Null));
    assert_eq!(events.len(), 4, "{events:?}");
    let (_, events) = stage.events(&["exec", "demo", "--", "sh", "-c", "kill -9 $$"]).await;
    assert_eq!(
        (&events[1]["signal"], &events[1]["signal_name"]),
        (&json!(9), &json!("KILL"))
    );
}

#[tokio::test]
async fn directory_environment_user_and_words_arrive() {
    let stage = Stage::new().await;
    let out = stage
        .ok(&[
            "exec",
            "demo",
            "-w",
            "/tmp",
            "-e",
            "A=1",
            "--env",
            "B=x=y",
            "--",
            "sh",
            "-c",
            "pwd; echo $A $B",
        ])
        .await;
    assert_eq!(out, "/tmp\n1 x=y\n");
    // A name alone takes the value from here.
    let mut command = stage.command(&["exec", "demo", "-e", "FROM_HERE", "--", "printenv", "FROM_HERE"]);
    command.env("FROM_HERE", "here");
    assert_eq!(super::stage::finish(command).await.text(), "here\n");
    assert_eq!(
        stage.ok(&["exec", "demo", "--user", "root", "--", "id", "-u"]).await,
        "0\n"
    );
    assert_ne!(stage.ok(&["exec", "demo", "--", "id", "-u"]).await, "0\n");
    // Options behind the program are the program's, also without `--`, and words arrive as they are.
    assert_eq!(
        stage.ok(&["exec", "demo", "echo", "-n", "--id", "$HOME  *"]).await,
        "--id $HOME  *"
    );
    let mut command = stage.command(&["exec", "demo", "--", "printf", "%s"]);
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff\xfe");
    command.arg(odd);
    assert_eq!(super::stage::finish(command).await.out, b"\xff\xfe");
}

#[tokio::test]
async fn stdin_is_passed_on_if_asked_for() {
    let stage = Stage::new().await;
    let binary: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let did = stage.feed(&["exec", "demo", "-i", "--", "cat"], &binary).await;
    assert_eq!((did.code, did.out, did.err.as_str()), (Some(0), binary.clone(), ""));
    // Without -i it is at its end.
    let did = stage.feed(&["exec", "demo", "--", "cat"], &binary).await;
    assert_eq!((did.code, did.out.len()), (Some(0), 0));

    let big = noise(16 << 20);
    let did = stage.feed(&["exec", "demo", "-i", "--", "cat"], &big).await;
    assert_eq!((did.code, did.err.as_str()), (Some(0), ""));
    assert!(did.out == big, "{} bytes of {} came back", did.out.len(), big.len());
    // Who wants no more is no failure, and neither is a stdin that stays open.
    let did = stage.feed(&["exec", "demo", "-i", "--", "head", "-c", "3"], &big).await;
    assert_eq!(
        (did.code, did.out.as_slice(), did.err.as_str()),
        (Some(0), &big[..3], "")
    );
    let did = stage
        .begin(&["exec", "demo", "-i", "--", "sh", "-c", "exit 4"])
        .end_with_stdin_open()
        .await;
    assert_eq!(did.code, Some(4));
}

#[tokio::test]
async fn the_same_id_runs_once() {
    let stage = Stage::new().await;
    let args = [
        "exec",
        "demo",
        "--id",
        "once",
        "--",
        "sh",
        "-c",
        "echo x >> runs; echo out; exit 6",
    ];
    for _ in 0..3 {
        let did = stage.run(&args).await;
        assert_eq!(
            (did.code, did.text().as_str(), did.err.as_str()),
            (Some(6), "out\n", "")
        );
    }
    assert_eq!(stage.sh("cat runs").await, "x\n");
    stage
        .refused(
            &["exec", "demo", "--id", "once", "--", "true"],
            125,
            "sandgate: exec once was started with a different request (EXEC_ALREADY_EXISTS, request ID)\n  Take another \
             --id, or look at that one: `sandgate ps`, `sandgate follow`.\n",
        )
        .await;
}
