//! Nothing is forgotten with the server, and every sandbox has an end.

use std::time::Duration;

use sandgate::{Command, v1};
use sandgate_proto::v1::ErrorReason;

use super::{PATIENCE, World, create, new_name, refused, sh};

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
    let resumed = client.sandbox(&suspended.info.name);
    resumed.resume().await.unwrap();
    assert_eq!(sh(&resumed, "cat file").await, "kept\n");
    found.delete().await.unwrap();
    resumed.delete().await.unwrap();
}

/// A deadline ends a sandbox, whatever it does; an idle limit only one that does nothing.
pub async fn deadline_and_idle_limit_are_kept(world: &mut impl World) {
    let client = world.client().await;
    let beat = world.beat();
    let create = || client.create().name(new_name());
    let (short, idle, busy, suspended) = tokio::try_join!(
        create().ttl(3 * beat).send(),
        create().idle_limit(2 * beat).send(),
        create().idle_limit(2 * beat).send(),
        create().ttl(4 * beat).idle_limit(beat).send(),
    )
    .unwrap();
    short.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    busy.sandbox
        .start(Command::shell("sleep 600").id("detached"))
        .await
        .unwrap();
    suspended.sandbox.suspend(None).await.unwrap();
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

async fn until_gone(sandbox: &sandgate::Sandbox) {
    let gone = async {
        while sandbox.get().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the sandbox ends");
    assert_eq!(refused(sandbox.get().await), ErrorReason::SandboxNotFound);
}
