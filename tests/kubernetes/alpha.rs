//! v1alpha1, on the real agent-sandbox 0.4.6: the contract is the same, what it is made of is not.
//!
//! All in one test, because the whole cluster is given another controller for it. Whatever happens, it has the newer one
//! again afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{path::PathBuf, process::Command as Process, thread, time::Duration};

use sandgate::{Client, Command, v1};
use sandgate_kubernetes_tests::{Cluster, Kubernetes, Mode, Space, Version, plain_template, until};
use sandgate_tests::{
    conformance::{self, new_name, sh},
    in_time,
};
use serde_json::json;

/// While it lives, the cluster has agent-sandbox 0.4.6.
struct OldAgentSandbox(PathBuf);

impl OldAgentSandbox {
    async fn take_over() -> Self {
        let scratch = Cluster::get().await.scratch;
        let scratch = scratch.expect("only a cluster of scripts/cluster can be given another agent-sandbox");
        let old = Self(scratch);
        old.change("v0.4.6");
        old
    }

    fn change(&self, version: &str) {
        let mut command = Process::new("../../scripts/cluster");
        command.arg("--dir").arg(&self.0).args(["agent-sandbox", version]);
        let changed = command.status().is_ok_and(|status| status.success());
        // What went wrong before is worth more.
        assert!(changed || thread::panicking(), "{command:?}");
    }
}

impl Drop for OldAgentSandbox {
    fn drop(&mut self) {
        self.change("v1.0.3");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_contract_holds_on_v1alpha1() {
    let old = OldAgentSandbox::take_over().await;
    let space = Space::of(Version::V1alpha1).await;
    make_templates(&space).await;
    let mut world = Kubernetes(space.server(Mode::InCluster).await);
    // Without those that only repeat for a chance to go wrong: they take minutes.
    macro_rules! cases {
        ($($case:ident),+ $(,)?) => {$(
            println!(stringify!($case));
            in_time(conformance::$case(&mut world)).await;
        )+};
    }
    cases! {
        a_new_sandbox_tells_everything,
        a_stream_carries_both_ways,
        a_watch_tells_every_change,
        another_server_sees_the_same,
        bad_requests_are_refused,
        commands_run,
        create_is_get_or_create,
        creates_at_once_make_one,
        deadline_and_idle_limit_are_kept,
        delete_frees_the_name,
        files_go_in_and_out,
        lists_by_label_and_in_pages,
        suspend_keeps_the_disk_and_ends_processes,
        updates_follow_mask_and_etag,
    }
    let client = world.0.client().await;
    in_time(warm_and_cold(&space, &client)).await;
    in_time(an_environment_of_the_claim(&space, &client)).await;
    in_time(what_can_never_be_ready(&client)).await;
    in_time(through_a_tunnel(&space)).await;
    in_time(an_end_without_a_server(&space, &mut world)).await;
    space.close().await;
    drop(old);
    Space::new().await.close().await;
}

/// Templates for what follows: with a shell alone, the same where the claim may give no environment, and one that can't be.
async fn make_templates(space: &Space) {
    let mut shell = plain_template("shell");
    shell["metadata"]["annotations"] = json!({"sandgate.dev/driver": "exec", "sandgate.dev/connection": "tunnel"});
    shell["spec"]["envVarsInjectionPolicy"] = "Allowed".into();
    shell["spec"]["podTemplate"]["spec"]["containers"] = json!([{
        "name": "shell", "image": "sandgate/busybox:test", "imagePullPolicy": "Never",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    }]);
    let mut strict = shell.clone();
    strict["metadata"]["name"] = "strict".into();
    strict["spec"]["envVarsInjectionPolicy"] = "Disallowed".into();
    let mut failing = plain_template("failing");
    failing["spec"]["podTemplate"]["spec"]["containers"][0]["command"] = json!(["/bin/false"]);
    for template in [shell, strict, failing] {
        space.create_template(template).await;
    }
}

/// A pool is used, by its name too, and what is said about it is true.
async fn warm_and_cold(space: &Space, client: &Client) {
    let cold = client.create().name(new_name()).template("plain").send().await.unwrap();
    let start = cold.info.start.unwrap();
    assert_eq!(
        (start.kind(), start.cold_reason()),
        (v1::StartKind::Cold, v1::ColdReason::NoPool),
        "{start:?}"
    );
    space.create_pool("pool", "plain", 1).await;
    let wanted = client.create().name(new_name()).warm_pool("pool").label("mine", "yes");
    let warm = wanted.env("MINE", "set").send().await.unwrap();
    assert_eq!(
        warm.info.start.as_ref().unwrap().kind(),
        v1::StartKind::Warm,
        "{:?}",
        warm.info
    );
    assert_eq!(sh(&warm.sandbox, "echo $MINE").await, "set\n");
    // The controller notes on a claim what it took, and leaves the callers' labels to them.
    let claim = space.claims().get(&warm.info.name).await.unwrap();
    assert!(
        claim
            .metadata
            .labels
            .unwrap()
            .contains_key("agents.x-k8s.io/sandbox-name")
    );
    let info = warm
        .sandbox
        .set_labels([("mine".to_owned(), "no".to_owned())].into())
        .await
        .unwrap();
    assert_eq!(info.labels, [("mine".to_owned(), "no".to_owned())].into());
    warm.sandbox.suspend(None).await.unwrap();
    let resumed = warm.sandbox.resume().await.unwrap();
    assert_ne!(resumed.incarnation, warm.info.incarnation);
    assert_eq!(sh(&warm.sandbox, "echo $MINE").await, "set\n");
    for sandbox in [&cold.sandbox, &warm.sandbox] {
        sandbox.delete().await.unwrap();
    }
}

/// An environment that only the claim can carry makes it start cold.
async fn an_environment_of_the_claim(space: &Space, client: &Client) {
    space.create_pool("shells", "shell", 1).await;
    let wanted = client.create().name(new_name()).template("shell").env("MINE", "set");
    let cold = wanted.send().await.unwrap();
    let start = cold.info.start.unwrap();
    assert_eq!(
        (start.kind(), start.cold_reason()),
        (v1::StartKind::Cold, v1::ColdReason::Env),
        "{start:?}"
    );
    assert_eq!(sh(&cold.sandbox, "echo $MINE").await, "set\n");
    cold.sandbox.delete().await.unwrap();
    let refused = client
        .create()
        .name(new_name())
        .template("strict")
        .env("MINE", "set")
        .send()
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.reason(), Some(v1::ErrorReason::SandboxFailed), "{refused:?}");
    assert!(refused.to_string().contains("permits no environment"), "{refused}");
}

async fn what_can_never_be_ready(client: &Client) {
    let refused = client
        .create()
        .name(new_name())
        .template("failing")
        .send()
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), Some(v1::ErrorReason::SandboxFailed), "{refused:?}");
    assert!(refused.to_string().contains("its pod failed"), "{refused}");
    let volume = v1::Volume {
        name: "more".to_owned(),
        bytes: 1 << 20,
        ..v1::Volume::default()
    };
    let request = v1::CreateRequest {
        name: new_name(),
        template: "plain".to_owned(),
        volumes: vec![volume],
        ..Default::default()
    };
    let refused = client.raw().create(request).await.unwrap_err();
    assert_eq!(
        sandgate_tests::reason(&refused),
        v1::ErrorReason::InvalidArgument,
        "{refused:?}"
    );
}

async fn through_a_tunnel(space: &Space) {
    let server = space.server(Mode::Tunnel).await;
    let created = server.client().await.create().name(new_name()).send().await.unwrap();
    assert_eq!(sh(&created.sandbox, "echo hello").await, "hello\n");
    created.sandbox.delete().await.unwrap();
}

/// Deadline and idle limit are kept with no server alive.
async fn an_end_without_a_server(space: &Space, world: &mut Kubernetes) {
    let client = world.0.client().await;
    let create = || client.create().name(new_name());
    let overdue = create().ttl(Duration::from_secs(8)).send().await.unwrap();
    let idle = create().idle_limit(Duration::from_secs(4)).send().await.unwrap();
    let asleep = create().ttl(Duration::from_secs(12)).send().await.unwrap();
    overdue.sandbox.start(Command::shell("sleep 600")).await.unwrap();
    asleep.sandbox.suspend(None).await.unwrap();
    world.0.kill();
    for each in [&idle, &overdue, &asleep] {
        until(async || space.claims().get_opt(&each.info.name).await.unwrap().is_none()).await;
    }
}
