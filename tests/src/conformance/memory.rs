//! Nothing is forgotten with the server, and every sandbox has an end.

use std::time::Duration;

use sandgate::{Client, Command, Sandbox, v1};
use sandgate_proto::v1::ErrorReason;

use super::{PATIENCE, World, create, level, new_name, refused, sh};

/// Another server sees the same sandboxes, execs and output.
pub async fn another_server_sees_the_same(world: &mut impl World) {
    let client = world.client().await;
    let wanted = client
        .create()
        .name(new_name())
        .label("kept", "yes")
        .ttl(Duration::from_secs(900));
    let running = wanted.idle_limit(Duration::from_secs(800)).send().await.unwrap();
    let suspended = create(&client).await;
    sh(&suspended.sandbox, "echo kept > file").await;
    suspended.sandbox.suspend(None).await.unwrap();
    running
        .sandbox
        .start(Command::shell("echo before; sleep 600").id("kept"))
        .await
        .unwrap();
    let (before, before_suspended) = (
        running.sandbox.get().await.unwrap(),
        suspended.sandbox.get().await.unwrap(),
    );
    drop(client);
    world.replace_server().await;
    let client = world.client().await;
    let same = |mut now: v1::Sandbox, mut before: v1::Sandbox| {
        // What is measured, and how it was reached, may differ.
        for each in [&mut now, &mut before] {
            (each.usage, each.start, each.connection) = (None, None, None);
        }
        assert_eq!(now, before);
    };
    let found = client.sandbox(&running.info.name);
    same(found.get().await.unwrap(), before);
    same(
        client.sandbox(&suspended.info.name).get().await.unwrap(),
        before_suspended,
    );
    if level(&running.info, "exec.resume") == Some(v1::CapabilityLevel::Full) {
        the_exec_runs_on(&found).await;
    } else {
        the_exec_is_not_run_again(&found).await;
    }
    let resumed = client.sandbox(&suspended.info.name);
    resumed.resume().await.unwrap();
    assert_eq!(sh(&resumed, "cat file").await, "kept\n");
    found.delete().await.unwrap();
    resumed.delete().await.unwrap();
}

async fn the_exec_runs_on(found: &Sandbox) {
    let exec = found.exec_info("kept").await.unwrap();
    assert_eq!(exec.state(), v1::ExecState::Running);
    let mut following = found.attach_exec("kept").follow();
    let mut seen = Vec::new();
    while seen != b"before\n" {
        if let sandgate::Event::Output { data, .. } = following.next().await.unwrap().unwrap() {
            seen.extend_from_slice(&data);
        }
    }
    drop(following);
    let again = found
        .start(Command::shell("echo before; sleep 600").id("kept"))
        .await
        .unwrap();
    assert_eq!(
        again.started_at, exec.started_at,
        "an id is run once, whichever server is asked"
    );
}

/// Only the server that started it knew of it.
async fn the_exec_is_not_run_again(found: &Sandbox) {
    assert_eq!(refused(found.exec_info("kept").await), ErrorReason::ExecNotFound);
    let again = found
        .run(Command::shell("echo before; sleep 600").id("kept"))
        .send()
        .await;
    match again {
        Ok(done) => {
            let failure = done.exec.unwrap().start_failure.unwrap();
            assert!(failure.message.contains("not run again"), "{failure:?}");
        }
        Err(error) => assert_eq!(error.reason(), Some(ErrorReason::ExecExpired), "{error:?}"),
    }
}

/// A deadline ends a sandbox, whatever it does; an idle limit only one that does nothing.
pub async fn deadline_and_idle_limit_are_kept(world: &mut impl World) {
    let client = world.client().await;
    let beat = world.beat();
    let create = || client.create().name(new_name());
    let look = create().send().await.unwrap();
    look.sandbox.delete().await.unwrap();
    if level(&look.info, "limits.idle") != Some(v1::CapabilityLevel::Full) {
        return the_cluster_keeps_the_deadline(&client, beat).await;
    }
    let (short, idle, busy, suspended) = tokio::try_join!(
        create().send(),
        create().idle_limit(2 * beat).send(),
        create().send(),
        create().send(),
    )
    .unwrap();
    // How long they take to come up is another matter.
    short.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    short.sandbox.extend(beat).await.unwrap();
    busy.sandbox
        .start(Command::shell("sleep 600").id("detached"))
        .await
        .unwrap();
    let limits = v1::SandboxSettings {
        idle_limit: Some(beat.try_into().unwrap()),
        end: Some(v1::sandbox_settings::End::Ttl((4 * beat).try_into().unwrap())),
        ..v1::SandboxSettings::default()
    };
    busy.sandbox.update(limits.clone(), &["idle_limit"], "").await.unwrap();
    suspended.sandbox.suspend(None).await.unwrap();
    suspended
        .sandbox
        .update(limits, &["idle_limit", "ttl"], "")
        .await
        .unwrap();
    for gone in [&short, &idle, &suspended] {
        until_gone(&gone.sandbox).await;
    }
    assert_eq!(
        busy.sandbox.get().await.unwrap().state(),
        v1::SandboxState::Ready,
        "a live command is no idling"
    );
    let kill = v1::SignalExecRequest {
        sandbox: busy.info.name.clone(),
        exec_id: "detached".to_owned(),
        signal: Some(v1::ExecSignal { signal: 9 }),
        ..v1::SignalExecRequest::default()
    };
    client.raw().signal_exec(kill).await.unwrap();
    until_gone(&busy.sandbox).await;
}

/// Nothing inside knows of limits: an idle limit is refused that can't be kept from outside.
async fn the_cluster_keeps_the_deadline(client: &Client, beat: Duration) {
    let create = || client.create().name(new_name());
    let idle = create().idle_limit(2 * beat).send().await.unwrap_err();
    let idle = idle.refused().unwrap();
    assert_eq!(
        (idle.reason, idle.field.as_deref()),
        (Some(ErrorReason::InvalidArgument), Some("idle_limit")),
        "{idle:?}"
    );
    let (short, suspended) = tokio::try_join!(create().send(), create().send()).unwrap();
    short.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    suspended.sandbox.suspend(None).await.unwrap();
    for each in [&short, &suspended] {
        each.sandbox.extend(2 * beat).await.unwrap();
    }
    for gone in [&short, &suspended] {
        until_gone(&gone.sandbox).await;
    }
}

async fn until_gone(sandbox: &Sandbox) {
    let gone = async {
        while sandbox.get().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the sandbox ends");
    assert_eq!(refused(sandbox.get().await), ErrorReason::SandboxNotFound);
}
