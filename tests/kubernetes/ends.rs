//! Every sandbox has an end, which is kept with no server alive.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use sandgate::{Command, v1};
use sandgate_kubernetes_tests::{Mode, Space, until};
use sandgate_tests::conformance::new_name;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_end_in_time_with_all_servers_dead() {
    let space = Space::new().await;
    let mut server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let create = || client.create().name(new_name());
    let (overdue, idle, busy, asleep) =
        tokio::try_join!(create().send(), create().send(), create().send(), create().send()).unwrap();
    overdue.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    let detached = busy.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    asleep.sandbox.suspend(None).await.unwrap();
    // Limits begin when everything is as it shall be: how long that took is another matter.
    let soon = v1::SandboxSettings {
        idle_limit: Some(Duration::from_secs(2).try_into().unwrap()),
        ..v1::SandboxSettings::default()
    };
    for each in [&busy, &asleep, &idle] {
        each.sandbox.update(soon.clone(), &["idle_limit"], "").await.unwrap();
    }
    overdue.sandbox.extend(Duration::from_secs(2)).await.unwrap();
    server.kill();
    let claims = space.claims();
    let is_there = async |name: &str| {
        let claim = claims.get_opt(name).await.unwrap();
        claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_none())
    };
    for gone in [&idle, &overdue] {
        until(async || !is_there(&gone.info.name).await).await;
    }
    assert!(is_there(&busy.info.name).await, "a detached command keeps its sandbox");
    assert!(
        is_there(&asleep.info.name).await,
        "a suspended sandbox is kept until its deadline"
    );
    server.restart().await;
    let client = server.client().await;
    let asleep = client.sandbox(&asleep.info.name);
    asleep.extend(Duration::from_secs(2)).await.unwrap();
    let busy = client.sandbox(&busy.info.name);
    busy.signal_exec(&detached.exec_id, 9).await.unwrap();
    server.kill();
    for gone in [&busy, &asleep] {
        until(async || !is_there(gone.name()).await).await;
    }
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_while_it_makes_one_leaks_nothing() {
    let space = Space::new().await;
    let mut stuck = sandgate_kubernetes_tests::plain_template("stuck");
    stuck["spec"]["podTemplate"]["spec"]["nodeSelector"] = serde_json::json!({"no-such": "node"});
    space.create_template(stuck).await;
    let mut server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let name = new_name();
    let created = client
        .create()
        .name(&name)
        .template("stuck")
        .no_wait()
        .send()
        .await
        .unwrap();
    until(async || {
        let now = client.sandbox(&name).get().await.unwrap();
        now.state_message.contains("no node has room")
    })
    .await;
    server.kill();
    let claim = space.claims().get(&created.info.name).await.unwrap();
    let lifecycle = &claim.data["spec"]["lifecycle"];
    assert_eq!(lifecycle["shutdownPolicy"], "Delete");
    let now = k8s_openapi::jiff::Timestamp::now();
    let ends: k8s_openapi::jiff::Timestamp = lifecycle["shutdownTime"].as_str().unwrap().parse().unwrap();
    assert!(
        ends.duration_since(now).as_secs() <= 125,
        "a claim that nobody has seen ready ends soon: {ends}"
    );
    space
        .claims()
        .delete(&name, &kube::api::DeleteParams::default())
        .await
        .unwrap();
    space.close().await;
}
