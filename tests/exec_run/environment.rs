//! The environment is what was said and no more, and is said to nobody.

use super::*;

#[tokio::test]
async fn the_environment_is_what_was_said_and_no_more() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let home = format!("HOME={}", home("root"));
    let env = argv(&["env"]);
    assert_eq!(
        sorted(&stdout(&mut client, env.clone()).await),
        [home.as_str(), "LANG=C.UTF-8", path]
    );
    let nobody = stdout(
        &mut client,
        ExecSpec {
            user: "nobody".into(),
            ..env.clone()
        },
    )
    .await;
    assert_eq!(sorted(&nobody)[0], format!("HOME={}", self::home("nobody")));

    // A later entry of one name wins, and over the default.
    let own = vec![var("A", "1"), var("LANG", "de_DE"), var("A", "2"), var("EMPTY", "")];
    let expected = ["A=2", "EMPTY=", home.as_str(), "LANG=de_DE", path];
    assert_eq!(
        sorted(
            &stdout(
                &mut client,
                ExecSpec {
                    env: own.clone(),
                    ..env.clone()
                }
            )
            .await
        ),
        expected
    );
    let clear = ExecSpec {
        clear_env: true,
        env: own,
        ..env.clone()
    };
    assert_eq!(
        sorted(&stdout(&mut client, clear).await),
        ["A=2", "EMPTY=", "LANG=de_DE"]
    );
    let bare = ExecSpec {
        clear_env: true,
        ..env.clone()
    };
    assert_eq!(stdout(&mut client, bare.clone()).await, "");

    let raw = EnvVar {
        name: "RAW".into(),
        value_raw: Bytes::from_static(b"\xff\xfe"),
        ..Default::default()
    };
    let answer = run(
        &mut client,
        ExecSpec {
            env: vec![raw],
            ..argv(&["printenv", "RAW"])
        },
    )
    .await;
    assert_eq!(&answer.stdout.unwrap().head[..], b"\xff\xfe\n");

    // What the creator configures is between the two, is replaced whole, and does not survive `clear_env`.
    let configure = |vars| ConfigureRequest {
        env: Some(ConfiguredEnv { vars }),
        ..Default::default()
    };
    client
        .configure(configure(vec![var("B", "1"), var("LANG", "fr_FR")]))
        .await
        .unwrap();
    let expected = ["B=1", home.as_str(), "LANG=fr_FR", path];
    assert_eq!(sorted(&stdout(&mut client, env.clone()).await), expected);
    let over = ExecSpec {
        env: vec![var("B", "2")],
        ..env.clone()
    };
    assert_eq!(sorted(&stdout(&mut client, over).await)[0], "B=2");
    assert_eq!(stdout(&mut client, bare.clone()).await, "");
    client.configure(configure(vec![var("C", "1")])).await.unwrap();
    client.configure(ConfigureRequest::default()).await.unwrap();
    assert_eq!(sorted(&stdout(&mut client, env).await)[0], "C=1");

    for name in ["", "A=B", "NUL\0"] {
        let spec = ExecSpec {
            env: vec![var(name, "x")],
            ..shell("true")
        };
        let refused = client.run(run_request(&new_id("bad"), spec)).await.unwrap_err();
        assert_eq!(reason(&refused), ErrorReason::InvalidArgument);
    }
}

/// The home directory that the system's list of users gives.
fn home(user: &str) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    users.lines().map(fields).find(|fields| fields[0] == user).unwrap()[5].clone()
}

#[tokio::test]
async fn programs_are_found_in_the_path_of_the_exec() {
    let runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    let bin = runtime.workspace().join("bin");
    fs::create_dir(&bin).unwrap();
    program(&bin.join("greet"), "#!/bin/sh\necho from bin\n", 0o755);
    program(&runtime.workspace().join("greet"), "#!/bin/sh\necho from here\n", 0o755);
    let path = |path: String| ExecSpec {
        env: vec![var("PATH", &path)],
        ..argv(&["greet"])
    };
    let bin = bin.display();
    assert_eq!(
        stdout(&mut client, path(format!("/no/such:{bin}:/usr/bin"))).await,
        "from bin\n"
    );
    assert_eq!(stdout(&mut client, path(format!(":{bin}"))).await, "from here\n");
    assert_eq!(stdout(&mut client, argv(&["./greet"])).await, "from here\n");
    let missing = run(&mut client, argv(&["greet"])).await.exec.unwrap();
    assert_eq!(missing.start_failure.unwrap().reason(), Reason::NotFound);
    // The one that Configure sets counts as well.
    let vars = vec![var("PATH", &bin.to_string())];
    let request = ConfigureRequest {
        env: Some(ConfiguredEnv { vars }),
        ..Default::default()
    };
    client.configure(request).await.unwrap();
    let spec = ExecSpec {
        env: vec![],
        ..argv(&["greet"])
    };
    let answer = run(&mut client, spec).await;
    assert_eq!(&answer.stdout.unwrap().head[..], b"from bin\n", "{:?}", answer.exec);
}

/// All bytes of all files beneath a directory.
fn everything(dir: &Path) -> Vec<u8> {
    let mut all = vec![];
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        all.extend_from_slice(entry.file_name().as_encoded_bytes());
        if entry.file_type().unwrap().is_dir() {
            all.extend(everything(&entry.path()));
        } else if entry.file_type().unwrap().is_file() {
            all.extend(fs::read(entry.path()).unwrap());
        }
    }
    all
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn check(trace: &Path, runtime: &Runtime, when: &str) {
    let (log, state) = (fs::read(trace).unwrap(), everything(&runtime.state_dir()));
    // What is looked at is not empty.
    assert!(
        holds(&log, "TRACE") && holds(&state, "wc -c") && holds(&state, "told"),
        "{when}"
    );
    for secret in ["secret-configured", "secret-own", "secret-stdin", "secret-other"] {
        assert!(!holds(&log, secret), "{secret} is in the log, {when}");
        assert!(!holds(&state, secret), "{secret} is in the state directory, {when}");
    }
}

#[tokio::test]
async fn env_values_and_stdin_are_written_down_nowhere() {
    let logs = tempfile::tempdir().unwrap();
    let trace = logs.path().join("trace");
    let args = ["--memory-bytes", "0"].map(Into::into).into();
    let options = RuntimeOptions {
        args,
        trace: Some(trace.clone()),
        ..Default::default()
    };
    let mut runtime = Runtime::start_with(options).await;
    let mut client = runtime.connect().await;
    let vars = vec![var("CONFIGURED", "secret-configured")];
    client
        .configure(ConfigureRequest {
            env: Some(ConfiguredEnv { vars }),
            ..Default::default()
        })
        .await
        .unwrap();
    let env = vec![var("OWN", "secret-own")];
    let spec = ExecSpec {
        env: env.clone(),
        stdin: StdinMode::Open.into(),
        ..shell("wc -c; echo told; sleep 1000")
    };
    start(&mut client, "secret", spec).await;
    let stdin = StdinWrite {
        offset: 0,
        data: Bytes::from_static(b"secret-stdin"),
        close: true,
    };
    let write = WriteExecRequest {
        exec_id: "secret".into(),
        stdin: Some(stdin),
        ..Default::default()
    };
    client.write_exec(write).await.unwrap();
    until(&mut client, "secret", |exec| exec.written.unwrap().stdout >= 8).await;
    // Refusals and failed starts tell nothing either.
    let bad = ExecSpec {
        env: [env.clone(), vec![var("OTHER", "secret-other\0")]].concat(),
        ..shell("true")
    };
    let refused = client.run(run_request("bad", bad)).await.unwrap_err();
    assert!(!format!("{refused:?}").contains("secret-o"), "{refused:?}");
    let failed = run(
        &mut client,
        ExecSpec {
            env,
            ..argv(&["no-such"])
        },
    )
    .await;
    assert!(!format!("{failed:?}").contains("secret-"));
    assert!(!format!("{:?}", get(&mut client, "secret").await).contains("secret-"));

    check(&trace, &runtime, "while it runs");
    client.stop(StopRequest::default()).await.unwrap();
    assert!(runtime.wait().await.success());
    check(&trace, &runtime, "after the end");
}
