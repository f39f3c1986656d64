//! Every capability that there is: where a driver has it, it works; where not, using it is refused by its name, and nothing
//! was done.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt as _, stream};
use sandgate::{Command, Event, Sandbox, v1};
use sandgate_kubernetes_tests::Mode;
use sandgate_tests::conformance::{must_lack, new_name, sh};

use super::{in_time, stage, table::table};

macro_rules! probed {
    ($($name:ident: $driver:literal, $mode:ident, $connection:ident);+ $(;)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            in_time(does_what_the_table_says($driver, Mode::$mode, v1::ConnectionMode::$connection)).await;
        }
    )+};
}

probed! {
    sandboxd_by_tunnel: "sandboxd", Tunnel, Tunnel;
    sandboxd_in_cluster: "sandboxd", InCluster, InCluster;
    python_runtime_in_cluster: "python-runtime", InCluster, InCluster;
    python_runtime_by_tunnel: "python-runtime", Tunnel, Tunnel;
    python_runtime_through_the_router: "python-runtime", Direct, Direct;
    python_runtime_through_a_gateway: "python-runtime", Gateway, Gateway;
    exec_by_tunnel: "exec", Tunnel, Tunnel;
}

async fn does_what_the_table_says(driver: &str, mode: Mode, connection: v1::ConnectionMode) {
    let (space, server) = stage(driver, mode).await;
    let client = server.client().await;
    let made = client.create().name(new_name()).send().await.unwrap();
    let info = made.sandbox.get().await.unwrap();
    assert_eq!(info.driver, driver);
    assert_eq!(
        info.connection.as_ref().unwrap().mode(),
        connection,
        "{:?}",
        info.connection
    );
    let wanted = table(driver);
    let told: BTreeMap<_, _> = info
        .capabilities
        .iter()
        .map(|capability| (capability.name.clone(), Some(capability.level())))
        .collect();
    let present: BTreeMap<_, _> = wanted
        .clone()
        .into_iter()
        .filter(|(_, level)| level.is_some())
        .collect();
    assert_eq!(told, present);
    for (name, level) in wanted {
        // A sandbox that is there can't be asked for it: see `birth`.
        if name == "env.warm" {
            continue;
        }
        let used = try_it(&made.sandbox, &name).await;
        match level {
            Some(_) => used.unwrap_or_else(|error| panic!("{name}: {error:?}")),
            None => {
                must_lack(used, &name);
                let left = sh(&made.sandbox, &format!("ls -A | grep -c '^{name}' || true")).await;
                assert_eq!(left, "0\n", "{name} was refused, and half done");
            }
        }
    }
    made.sandbox.delete().await.unwrap();
    space.close().await;
}

/// Uses a capability. What does work must work right.
async fn try_it(sandbox: &Sandbox, name: &str) -> sandgate::Result<()> {
    match name.split_once('.').unwrap().0 {
        "exec" => try_exec(sandbox, name).await,
        "files" => try_files(sandbox, name).await,
        "limits" => try_limits(sandbox, name).await,
        other => panic!("no test for {other}"),
    }
}

async fn try_exec(sandbox: &Sandbox, name: &str) -> sandgate::Result<()> {
    // What runs leaves a mark of its name.
    let marked = |script: &str| Command::shell(format!(": >{name}; {script}"));
    let spec = |change: fn(&mut v1::ExecSpec)| {
        let mut spec = v1::ExecSpec {
            command: Some(v1::exec_spec::Command::Shell(format!(": >{name}"))),
            ..v1::ExecSpec::default()
        };
        change(&mut spec);
        Command::from_spec(spec)
    };
    match name {
        "exec.run" => {
            let done = sandbox
                .run(marked("printf 'a\\377b'; echo no >&2; exit 3"))
                .send()
                .await?;
            let exit = done.exec.unwrap().exit.unwrap();
            assert_eq!(exit.status, Some(v1::exec_exit::Status::Code(3)));
            assert_eq!(&done.stdout.unwrap().head[..], b"a\xffb");
            assert_eq!(&done.stderr.unwrap().head[..], b"no\n");
        }
        "exec.budget" => {
            let script = "i=0; while [ $i -lt 2000 ]; do echo \"line $i\"; i=$((i+1)); done";
            let cut = sandbox.run(marked(script)).budget(7, 10).send().await?.stdout.unwrap();
            assert_eq!((&cut.head[..], &cut.tail[..]), (&b"line 0\n"[..], &b"line 1999\n"[..]));
            assert!(cut.omitted_lines > 1900, "{cut:?}");
        }
        "exec.hold" => drop(sandbox.exec(marked("true").hold_when_full()).wait().await?),
        "exec.rlimits" => {
            let limits = |spec: &mut v1::ExecSpec| {
                spec.rlimits.push(v1::Rlimit {
                    name: "nofile".into(),
                    soft: 64,
                    hard: 64,
                });
            };
            drop(sandbox.run(spec(limits)).send().await?);
        }
        "exec.user" => drop(sandbox.run(spec(|spec| spec.user = "root".into())).send().await?),
        "exec.stream" => {
            let output = sandbox.exec(marked("seq 1000; echo no >&2")).output().await?;
            assert!(
                output.outcome.success() && output.stdout.ends_with(b"\n999\n1000\n"),
                "{output:?}"
            );
            assert_eq!(&output.stderr[..], b"no\n");
        }
        "exec.resume" => {
            let id = sandbox.start(marked("seq 1000")).await?.exec_id;
            let whole = sandbox.attach_exec(&id).follow().output().await?.stdout;
            let seen = v1::ExecOffsets { stdout: 100, stderr: 0 };
            let rest = sandbox.attach_exec(&id).from(seen).follow().output().await?.stdout;
            assert!(
                whole.ends_with(b"\n1000\n") && rest == whole[100..],
                "{whole:?} {rest:?}"
            );
        }
        "exec.stdin" => {
            let mut exec = sandbox.exec(marked("cat").stdin());
            let mut stdin = exec.stdin().unwrap();
            let fed = tokio::spawn(async move {
                stdin.write(vec![b'x'; 200_000]).await?;
                stdin.close().await
            });
            let output = exec.output().await?;
            fed.await.unwrap().unwrap();
            assert!(output.outcome.success() && *output.stdout == vec![b'x'; 200_000][..]);
        }
        "exec.signal" => {
            let id = sandbox.start(marked("exec sleep 600")).await?.exec_id;
            // One that is only just starting has no group yet.
            while sandbox.signal_exec(&id, 15).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let output = sandbox.attach_exec(&id).follow().output().await?;
            let sandgate::Outcome::Exited(exit) = output.outcome else {
                panic!("{output:?}")
            };
            assert_eq!(exit.status, Some(v1::exec_exit::Status::Signal(15)));
        }
        "exec.pty" => {
            let mut exec = sandbox.exec(marked("tty; exec sleep 600").pty(80, 24, "xterm"));
            let control = exec.control();
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n") {
                match exec.next().await.unwrap()? {
                    Event::Output { data, .. } => seen.extend_from_slice(&data),
                    Event::Started(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(seen.starts_with(b"/dev/pts/"), "{seen:?}");
            control.resize(100, 30).await?;
            control.signal(9).await?;
            exec.wait().await?;
        }
        other => panic!("no test for {other}"),
    }
    Ok(())
}

async fn try_files(sandbox: &Sandbox, name: &str) -> sandgate::Result<()> {
    use v1::file_op::Op;
    let mut raw = sandbox.client().raw();
    let write = Op::Write(v1::WriteOp {
        path: format!("{name}/file"),
        content: "content".into(),
        make_parents: true,
        ..v1::WriteOp::default()
    });
    // Behind an operation that every driver knows: it must not be done either.
    let batch = |op: Op| {
        vec![
            v1::FileOp {
                op: Some(write.clone()),
            },
            v1::FileOp { op: Some(op) },
        ]
    };
    let stat = Op::Stat(v1::StatOp {
        path: format!("{name}/file"),
        ..v1::StatOp::default()
    });
    let viewed = |view: v1::FileView| v1::FileOpsRequest {
        sandbox: sandbox.name().to_owned(),
        view: Some(view),
        ops: batch(stat.clone()),
        ..v1::FileOpsRequest::default()
    };
    match name {
        "files.batch" => {
            let results = sandbox.file_ops(batch(stat.clone())).await?;
            let Some(v1::file_op_result::Result::Info(info)) = &results[1].result else {
                panic!("{results:?}")
            };
            assert_eq!(info.size, 7);
        }
        "files.glob" => {
            let glob = v1::GlobOp {
                pattern: "**".into(),
                ..v1::GlobOp::default()
            };
            drop(sandbox.file_ops(batch(Op::Glob(glob))).await?);
        }
        "files.grep" => {
            let grep = v1::GrepOp {
                pattern: "content".into(),
                ..v1::GrepOp::default()
            };
            drop(sandbox.file_ops(batch(Op::Grep(grep))).await?);
        }
        "files.root" => {
            let view = v1::FileView {
                root_dir: "/workspace".into(),
                ..v1::FileView::default()
            };
            drop(raw.file_ops(viewed(view)).await?);
        }
        "files.user" => {
            let view = v1::FileView {
                user: "root".into(),
                ..v1::FileView::default()
            };
            drop(raw.file_ops(viewed(view)).await?);
        }
        "files.transfer" => {
            let content = vec![b'x'; 100_000];
            sandbox.upload(name, content.clone()).await?;
            assert!(sandbox.download(name).await? == content);
            assert_eq!(sh(sandbox, &format!("wc -c <{name}")).await.trim(), "100000");
        }
        "files.tar" => {
            sandbox.upload_tar(name, stream::iter([vec![0; 1024].into()])).await?;
            let mut tar = std::pin::pin!(sandbox.download_tar(name).await?);
            while let Some(chunk) = tar.next().await {
                chunk?;
            }
        }
        "files.chunks" => {
            let request = v1::WriteChunkRequest {
                sandbox: sandbox.name().to_owned(),
                upload_id: name.to_owned(),
                entry: Some(v1::UploadEntry {
                    path: name.to_owned(),
                    ..v1::UploadEntry::default()
                }),
                data: "content".into(),
                ..v1::WriteChunkRequest::default()
            };
            drop(raw.write_chunk(request).await?);
        }
        "files.watch" => {
            let request = v1::WatchFilesRequest {
                sandbox: sandbox.name().to_owned(),
                path: "/workspace".to_owned(),
                ..v1::WatchFilesRequest::default()
            };
            raw.watch_files(request).await?.into_inner().message().await?;
        }
        other => panic!("no test for {other}"),
    }
    Ok(())
}

async fn try_limits(sandbox: &Sandbox, name: &str) -> sandgate::Result<()> {
    match name {
        "limits.deadline" => {
            let before = sandbox.get().await?.deadline;
            let now = sandbox.extend(Duration::from_secs(7_200)).await?.deadline;
            assert!(now.is_some() && now != before, "{before:?} {now:?}");
        }
        "limits.idle" => {
            let settings = |seconds| v1::SandboxSettings {
                idle_limit: Some(Duration::from_secs(seconds).try_into().unwrap()),
                ..v1::SandboxSettings::default()
            };
            let now = sandbox.update(settings(600), &["idle_limit"], "").await?;
            assert_eq!(now.idle_limit.unwrap().seconds, 600);
            let short = sandbox.update(settings(60), &["idle_limit"], "").await.unwrap_err();
            assert_eq!(
                short.refused().unwrap().field.as_deref(),
                Some("idle_limit"),
                "{short:?}"
            );
        }
        other => panic!("no test for {other}"),
    }
    Ok(())
}
