//! Where, as whom and within what a command runs; why it can't; how it ended.

use std::{io::Read as _, process};

use super::*;

#[tokio::test]
async fn directory_user_mask_and_limits() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        let raw = b"/tmp/../usr";
        assert_eq!(
            stdout(
                &mut client,
                ExecSpec {
                    cwd: "/usr/bin".into(),
                    ..argv(&["pwd"])
                }
            )
            .await,
            "/usr/bin\n"
        );
        let spec = ExecSpec {
            cwd_raw: Bytes::from_static(raw),
            ..argv(&["pwd"])
        };
        assert_eq!(stdout(&mut client, spec).await, "/usr\n");

        for user in ["nobody", "65534"] {
            let spec = ExecSpec {
                user: user.into(),
                ..shell("id -u; id -g; id -G; touch /etc/no 2>/dev/null || echo no")
            };
            assert_eq!(stdout(&mut client, spec).await, "65534\n65534\n65534\nno\n");
        }
        assert_eq!(stdout(&mut client, shell("id -u; umask")).await, "0\n0022\n");
        assert_eq!(
            stdout(
                &mut client,
                ExecSpec {
                    umask: Some(0o027),
                    ..shell("umask")
                }
            )
            .await,
            "0027\n"
        );
        assert_eq!(
            stdout(
                &mut client,
                ExecSpec {
                    umask: Some(0),
                    ..shell("umask")
                }
            )
            .await,
            "0000\n"
        );

        let limit = |name: &str, soft, hard| Rlimit {
            name: name.into(),
            soft,
            hard,
        };
        let rlimits = vec![limit("nofile", 50, 60), limit("core", 0, 0), limit("fsize", 512, 1024)];
        let spec = ExecSpec {
            rlimits,
            ..shell("ulimit -Sn; ulimit -Hn; ulimit -c; ulimit -Sf; ulimit -Hf")
        };
        assert_eq!(stdout(&mut client, spec).await, "50\n60\n0\n1\n2\n");
        // Nothing of it stays with the runtime or the next one.
        assert_eq!(
            stdout(&mut client, shell("umask; id -u; pwd")).await,
            format!("0022\n0\n{}\n", runtime.workspace().display())
        );

        for spec in [
            ExecSpec {
                cwd: "usr".into(),
                ..shell("true")
            },
            ExecSpec {
                umask: Some(0o1000),
                ..shell("true")
            },
            ExecSpec {
                rlimits: vec![limit("nofile", 9, 8)],
                ..shell("true")
            },
            ExecSpec {
                rlimits: vec![limit("nofiles", 8, 9)],
                ..shell("true")
            },
            ExecSpec::default(),
            argv(&[]),
            argv(&["a\0b"]),
        ] {
            let refused = client.run(run_request(&new_id("bad"), spec)).await.unwrap_err();
            assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
        }
    }
}

#[tokio::test]
async fn arguments_are_bytes() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let args = [&b"printf"[..], b"%s|", b"\xff\xfe", b"", b"a b", "é".as_bytes()];
    let args_raw = args.iter().map(|arg| Bytes::from_static(arg)).collect();
    let spec = ExecSpec {
        command: Some(Command::Argv(Argv { args: vec![], args_raw })),
        ..Default::default()
    };
    let answer = run(&mut client, spec).await;
    assert_eq!(&answer.stdout.unwrap().head[..], b"\xff\xfe||a b|\xc3\xa9|");
}

#[tokio::test]
async fn long_scripts_run_as_short_ones_do() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        let script = |padding: usize| {
            // The same number of lines, however long.
            let line = format!("# {}\n", "x".repeat(padding / 100));
            let tests = "echo $0 $#
                [ -e /proc/self/fd/3 ] && echo 3 is open
                sh -c '[ -e /proc/self/fd/3 ] && echo 3 is open in a child'
                cat; echo end of stdin
                f() { return 5; }; f; echo $?
                no-such-command
                exit 9\n";
            line.repeat(100) + tests
        };
        let short = run(&mut client, shell(script(1000))).await;
        for padding in [128 << 10, 256 << 10, 1_000_000] {
            let long = run(&mut client, shell(script(padding))).await;
            assert_eq!(status(&long), Some(Status::Code(9)));
            assert_eq!(long.stdout, short.stdout);
            let (long, short) = (long.stderr.unwrap().head, short.stderr.clone().unwrap().head);
            // A sourced file has a name, which the shell adds.
            let message = |text: &Bytes| String::from_utf8_lossy(text).replace("/proc/self/fd/3: ", "");
            assert_eq!(message(&long), message(&short));
        }
        assert_eq!(&short.stdout.unwrap().head[..], b"/bin/sh 0\nend of stdin\n5\n");
        let complaint = String::from_utf8_lossy(&short.stderr.unwrap().head).into_owned();
        assert!(complaint.contains(" 106: no-such-command"), "{complaint}");
        let long = shell("#".repeat((1 << 20) + 1));
        let refused = client.run(run_request("too-long", long)).await.unwrap_err();
        assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
        // It is no login shell, and another user can read its script too.
        let spec = ExecSpec {
            user: "nobody".into(),
            ..shell(script(256 << 10))
        };
        assert_eq!(status(&run(&mut client, spec).await), Some(Status::Code(9)));
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        let workspace = runtime.workspace();
        program(&workspace.join("plain"), "#!/bin/sh\n", 0o644);
        program(&workspace.join("orphan"), "#!/no/such/interpreter\n", 0o755);
        program(&workspace.join("formless"), "echo no first line\n", 0o755);
        program(&workspace.join("private"), "#!/bin/sh\n", 0o700);
        let closed = workspace.join("closed");
        fs::create_dir(&closed).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let nobody = |spec| ExecSpec {
            user: "nobody".into(),
            ..spec
        };
        let cwd = |cwd: &Path| ExecSpec {
            cwd: cwd.display().to_string(),
            ..shell("true")
        };
        let rlimits = vec![Rlimit {
            name: "nofile".into(),
            soft: 1 << 40,
            hard: 1 << 40,
        }];
        let long = "x".repeat(200 << 10);
        let many: Vec<EnvVar> = (0..25).map(|n| var(&format!("V{n}"), &"x".repeat(100 << 10))).collect();
        for (spec, expected) in [
            (argv(&["no-such-program"]), Reason::NotFound),
            (argv(&["./no-such-program"]), Reason::NotFound),
            (argv(&["/etc/passwd/x"]), Reason::NotFound),
            (argv(&["./orphan"]), Reason::NotFound),
            (argv(&["./plain"]), Reason::NotExecutable),
            (argv(&["./formless"]), Reason::NotExecutable),
            (argv(&["/"]), Reason::NotExecutable),
            (nobody(argv(&["./private"])), Reason::NotExecutable),
            (cwd(Path::new("/no/such")), Reason::BadCwd),
            (cwd(&workspace.join("plain")), Reason::BadCwd),
            (nobody(cwd(&closed)), Reason::BadCwd),
            (argv(&["echo", &long]), Reason::TooLong),
            (
                ExecSpec {
                    env: many,
                    ..argv(&["true"])
                },
                Reason::TooLong,
            ),
            (
                ExecSpec {
                    user: "no-such-user".into(),
                    ..shell("true")
                },
                Reason::BadUser,
            ),
            (
                ExecSpec {
                    rlimits,
                    ..shell("true")
                },
                Reason::BadLimit,
            ),
        ] {
            let answer = run(&mut client, spec).await;
            let exec = answer.exec.unwrap();
            assert_eq!(exec.state(), ExecState::StartFailed, "{exec:?}");
            let failure = exec.start_failure.unwrap();
            assert_eq!(failure.reason(), expected, "{failure:?}");
            assert!(!failure.message.is_empty());
            assert!(
                exec.pid == 0 && exec.exit.is_none() && !exec.processes_alive && exec.output_ended,
                "{failure:?}"
            );
        }
        let orphan = workspace.join("orphan").display().to_string();
        let orphan = run(&mut client, argv(&[&orphan]))
            .await
            .exec
            .unwrap()
            .start_failure
            .unwrap();
        assert!(orphan.message.contains("interpreter"), "{}", orphan.message);
        if cgroups {
            let groups = runtime.cgroup().groups();
            assert!(groups.len() <= 1, "one served all of them: {groups:?}");
        }
    }
}

#[tokio::test]
async fn the_exit_says_how_and_at_what_cost() {
    for cgroups in [false, true] {
        let runtime = Runtime::with_cgroups(cgroups).await;
        let mut client = runtime.connect().await;
        for code in [0, 1, 255] {
            let answer = run(&mut client, shell(format!("exit {code}"))).await;
            assert_eq!(status(&answer), Some(Status::Code(code)));
        }
        for signal in [1, 9, 15] {
            let answer = run(&mut client, shell(format!("kill -{signal} $$"))).await;
            assert_eq!(status(&answer), Some(Status::Signal(signal)));
        }
        // Half a second of work in a child that is waited for, and 32 MiB of memory.
        let busy =
            "timeout 0.5 sh -c 'while :; do :; done'; head -c 33554432 /dev/zero | tail -c 33554432 >/dev/null; :";
        let exec = run(&mut client, shell(busy)).await.exec.unwrap();
        let exit = exec.exit.unwrap();
        let span = |span: Option<prost_types::Duration>| Duration::try_from(span.unwrap()).unwrap();
        assert!(span(exit.duration) >= Duration::from_millis(500), "{exit:?}");
        assert!(
            span(exit.user_time) + span(exit.system_time) >= Duration::from_millis(50),
            "{exit:?}"
        );
        assert!(exit.max_rss >= 32 * MIB && exit.max_rss < 1 << 40, "{exit:?}");
        assert!(!exit.timed_out && exit.out_of_memory == 0);
        let at = |at: Option<prost_types::Timestamp>| std::time::SystemTime::try_from(at.unwrap()).unwrap();
        assert!(at(exit.exited_at) >= at(exec.started_at) + Duration::from_millis(400));
    }
}

/// Also if nothing was ever started: what programs are started with is there from the beginning.
#[tokio::test]
async fn a_runtime_that_may_have_no_more_processes_says_so_and_goes_on() {
    // They are counted for each user, threads too, and root is not held to it.
    let script = r#"
        place=$(dirname "$3")
        cp "$1" "$place/runtime" && chmod 755 "$place/runtime" && chown 54321 "$place" "$place/workspace" && shift &&
            exec prlimit --nproc=30 setpriv --reuid=54321 --regid=54321 --clear-groups "$place/runtime" "$@"
    "#;
    let runtime = Runtime::start_with(RuntimeOptions {
        wrapper: ["sh", "-c", script, "sh"].map(Into::into).to_vec(),
        ..Default::default()
    })
    .await;
    let mut client = runtime.connect().await;
    let crowd = "
import sys, threading, time
for _ in range(40):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print('here', flush=True)
sys.stdin.read()
";
    let mut crowd = process::Command::new("setpriv")
        .args([
            "--reuid=54321",
            "--regid=54321",
            "--clear-groups",
            "/usr/bin/python3",
            "-c",
            crowd,
        ])
        .stdin(process::Stdio::piped())
        .stdout(process::Stdio::piped())
        .spawn()
        .unwrap();
    crowd.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    let failure = run(&mut client, shell("true")).await.exec.unwrap().start_failure;
    // With its stdin.
    assert!(crowd.wait().unwrap().success());
    let failure = failure.expect("there was room for more");
    assert_eq!(failure.reason(), Reason::NoResources, "{failure:?}");
    assert_eq!(stdout(&mut client, shell("id -u")).await, "54321\n");
}
