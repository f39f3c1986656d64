//! What is there after the runtime was stopped, or killed, and started again.

use super::*;

/// Ends the runtime in order: by the call, or else by a signal.
async fn stop(runtime: &mut Runtime, client: &mut Client, told: bool) {
    if told {
        client.stop(StopRequest::default()).await.unwrap();
    } else {
        let pid = Pid::from_raw(i32::try_from(runtime.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }
    assert!(runtime.wait().await.success());
}

#[tokio::test]
async fn what_a_follower_saw_of_a_held_process_is_known_after_a_crash() {
    let mut runtime = Runtime::start().await;
    let mut client = runtime.connect().await;
    Source::new(&runtime, 8 * MIB, 4 * MIB);
    let _stream = exec_stream(&mut client, "held", held()).await;
    let before = stand_still(&mut client, "held").await;
    runtime.kill();
    runtime.restart().await;
    let mut client = runtime.connect().await;
    let after = get(&mut client, "held").await;
    // A follower may have had all that the log had.
    let (before, after) = (before.written.unwrap(), after.written.unwrap());
    assert!(
        after.stdout >= before.stdout && after.stderr >= before.stderr,
        "{before:?} {after:?}"
    );
    for from in [ExecOffsets::default(), before] {
        assert_eq!(collect(&mut client, "held", from).await.next, after);
    }
}

#[tokio::test]
async fn an_orderly_stop_waits_for_no_follower() {
    for told in [true, false] {
        let mut runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let source = Source::new(&runtime, 8 * MIB, 4 * MIB);
        let stream = exec_stream(&mut client, "held", held()).await;
        let before = stand_still(&mut client, "held").await;
        stop(&mut runtime, &mut client, told).await;
        drop(stream);
        runtime.restart().await;
        let mut client = runtime.connect().await;
        let output = collect(&mut client, "held", ExecOffsets::default()).await;
        assert_eq!(
            output.exit.unwrap().status,
            Some(Status::Signal(if told { 9 } else { 15 }))
        );
        // What the follower had is dropped by now; of what it had not, nothing is.
        let oldest = get(&mut client, "held").await.oldest.unwrap();
        assert_eq!(output.gaps, gaps(ExecOffsets::default(), oldest));
        assert!(source.stdout[oldest.stdout as usize..].starts_with(&output.stdout));
        assert!(source.stderr[oldest.stderr as usize..].starts_with(&output.stderr));
        let written = before.written.unwrap();
        assert!(output.next.stdout >= written.stdout && output.next.stderr >= written.stderr);
        assert_eq!(output.ended.unwrap().total, Some(output.next));
    }
}

#[tokio::test]
async fn after_a_crash_what_is_lost_is_said_exactly() {
    for (cgroups, size) in [(false, 3 * MIB), (true, 3 * MIB), (false, 1000)] {
        let args = ["--memory-bytes", "524288"].map(Into::into).into();
        let mut runtime = Runtime::start_with(RuntimeOptions {
            args,
            cgroups,
            ..Default::default()
        })
        .await;
        let mut client = runtime.connect().await;
        let source = Source::new(&runtime, size, size / 3);
        let running = shell("cat err >&2 & cat out; wait; sleep 1000");
        let finished = shell("cat out; cat err >&2; exit 7");
        start(&mut client, "finished", finished.clone()).await;
        let before = ended(&mut client, "finished").await;
        let started = start(&mut client, "running", running.clone()).await;
        until(&mut client, "running", |exec| exec.written == Some(source.total())).await;
        runtime.kill();
        runtime.restart().await;
        let mut client = runtime.connect().await;

        let lost = get(&mut client, "running").await;
        assert_eq!(lost.state(), ExecState::Exited);
        assert!(
            matches!(lost.exit.as_ref().unwrap().status, Some(Status::Lost(_))),
            "{lost:?}"
        );
        assert!(lost.output_ended && !lost.processes_alive && !lost.stdin_open);
        assert_eq!(lost.written, Some(source.total()));
        assert_eq!(
            (&lost.incarnation, &lost.command),
            (&started.incarnation, &started.command)
        );
        let after = get(&mut client, "finished").await;
        assert_eq!(
            (&after.exit, &after.written, &after.pid),
            (&before.exit, &before.written, &before.pid)
        );

        for (id, status) in [
            ("running", lost.exit.unwrap().status),
            ("finished", Some(Status::Code(7))),
        ] {
            let output = collect(&mut client, id, ExecOffsets::default()).await;
            source.check(&output);
            assert_eq!(output.exit.unwrap().status, status);
            let lost: u64 = output.gaps.iter().map(|gap| gap.to - gap.from).sum();
            assert!(lost <= 1 << 20, "{id}: {lost} bytes are lost");
            for gap in &output.gaps {
                let end = if gap.stream() == OutputStream::Stdout {
                    size
                } else {
                    size / 3
                };
                assert_eq!(gap.to, end as u64, "what is lost is the end");
            }
        }
        // The ids are taken, each by its own request.
        for (id, same, other) in [("running", &running, &finished), ("finished", &finished, &running)] {
            let again = client
                .start_exec(start_request(id, same.clone()))
                .await
                .unwrap()
                .into_inner();
            assert!(!again.started);
            let refused = client.start_exec(start_request(id, other.clone())).await.unwrap_err();
            assert_eq!(reason(&refused), ErrorReason::ExecAlreadyExists);
        }
    }
}

#[tokio::test]
async fn after_an_orderly_stop_everything_is_there() {
    for told in [true, false] {
        let mut runtime = Runtime::start().await;
        let mut client = runtime.connect().await;
        let source = Source::new(&runtime, 3 * MIB, MIB);
        start(&mut client, "finished", shell("cat err >&2 & cat out; wait; exit 7")).await;
        start(
            &mut client,
            "running",
            shell("cat err >&2 & cat out; wait; exec sleep 1000"),
        )
        .await;
        start(&mut client, "short", shell("head -c 10 out; head -c 20 err >&2")).await;
        start(&mut client, "silent", shell("true")).await;
        let mut before = vec![];
        until(&mut client, "running", |exec| exec.written == Some(source.total())).await;
        for id in ["finished", "short", "silent"] {
            ended(&mut client, id).await;
            before.push((id, collect(&mut client, id, ExecOffsets::default()).await));
        }
        stop(&mut runtime, &mut client, told).await;
        runtime.restart().await;
        let mut client = runtime.connect().await;

        for (id, before) in before {
            let after = collect(&mut client, id, ExecOffsets::default()).await;
            assert!(
                after.gaps.is_empty() && after.exit == before.exit && after.ended == before.ended,
                "{id}"
            );
            assert!(after.stdout == before.stdout && after.stderr == before.stderr, "{id}");
            assert_eq!(after.at_exit, before.at_exit, "{id}");
        }
        let running = collect(&mut client, "running", ExecOffsets::default()).await;
        source.check(&running);
        assert!(running.gaps.is_empty());
        let signal = if told { 9 } else { 15 };
        assert_eq!(running.exit.unwrap().status, Some(Status::Signal(signal)));
    }
}
