//! Warm and cold: what a pool has is taken, and what is said about it is true.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use sandgate::{Command, v1};
use sandgate_kubernetes_tests::{Mode, Space};
use sandgate_tests::conformance::{new_name, sh};

const LAUNCH_TYPE: &str = "agents.x-k8s.io/launch-type";

/// What the controller says of the Sandbox that a claim was given.
async fn launch_type(space: &Space, name: &str) -> String {
    let claim = space.claims().get(name).await.unwrap();
    let sandbox = claim.data["status"]["sandbox"]["name"].as_str().unwrap().to_owned();
    let sandbox = space.sandboxes().get(&sandbox).await.unwrap();
    sandbox.metadata.labels.unwrap()[LAUNCH_TYPE].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_of_fifty_are_warm_with_an_environment_of_their_own() {
    let space = Space::new().await;
    space.create_pool("pool", "plain", 5).await;
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    for round in 0..50 {
        space.until_full("pool", 1).await;
        let value = format!("secret-{round}");
        let created = client
            .create()
            .name(new_name())
            .warm_pool("pool")
            .env("MINE", &value)
            .send()
            .await
            .unwrap();
        let start = created.info.start.unwrap();
        assert_eq!(
            (start.kind(), start.cold_reason()),
            (v1::StartKind::Warm, v1::ColdReason::Unspecified),
            "{start:?}"
        );
        assert!(start.pool.is_some_and(|pool| pool.name == "pool" && pool.wanted == 5));
        assert_eq!(launch_type(&space, &created.info.name).await, "warm");
        assert_eq!(sh(&created.sandbox, "echo $MINE").await, format!("{value}\n"));
        let claim = space.claims().get(&created.info.name).await.unwrap();
        assert!(
            !serde_json::to_string(&claim).unwrap().contains(&value),
            "a claim is plain text"
        );
        created.sandbox.delete().await.unwrap();
    }
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_pool_falls_to_cold_and_says_why() {
    let space = Space::new().await;
    space.create_pool("pool", "plain", 1).await;
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let creates = (0..8).map(|_| tokio::spawn(client.create().name(new_name()).template("plain").send()));
    let mut cold = 0;
    for create in creates.collect::<Vec<_>>() {
        let created = create.await.unwrap().unwrap();
        let start = created.info.start.clone().unwrap();
        let truth = launch_type(&space, &created.info.name).await;
        match start.kind() {
            v1::StartKind::Warm => assert_eq!(truth, "warm"),
            v1::StartKind::Cold => {
                assert_eq!(
                    (truth.as_str(), start.cold_reason()),
                    ("cold", v1::ColdReason::PoolEmpty),
                    "{start:?}"
                );
                assert!(start.message.contains("replicas"), "{}", start.message);
                cold += 1;
            }
            other => panic!("{other:?}"),
        }
        created.sandbox.delete().await.unwrap();
    }
    assert!(cold > 0, "eight at once from a pool of one");
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_start_has_its_reason() {
    let space = Space::new().await;
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let created = client.create().name(new_name()).template("plain").send().await.unwrap();
    let start = created.info.start.unwrap();
    assert_eq!(
        (start.kind(), start.cold_reason()),
        (v1::StartKind::Cold, v1::ColdReason::NoPool)
    );
    let steps: Vec<_> = start.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(steps, ["claim", "bound", "pod", "connect"]);
    // The pool that claims can't do without is the template's, and makes nothing.
    let pool = space.pools().get("sandgate-plain").await.unwrap();
    assert_eq!(pool.data["spec"]["replicas"], 0);
    assert_eq!(pool.metadata.owner_references.unwrap()[0].name, "plain");
    created.sandbox.run(Command::shell("true")).send().await.unwrap();
    created.sandbox.delete().await.unwrap();
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_never_be_ready_is_said_at_once_and_leaves_nothing() {
    let space = Space::new().await;
    let mut missing = sandgate_kubernetes_tests::plain_template("missing");
    missing["spec"]["podTemplate"]["spec"]["containers"][0]["image"] = "sandgate/no-such:image".into();
    space.create_template(missing).await;
    let mut wrong = sandgate_kubernetes_tests::plain_template("wrong");
    wrong["metadata"]["annotations"]["sandgate.dev/driver"] = "docker".into();
    space.create_template(wrong).await;
    let mut failing = sandgate_kubernetes_tests::plain_template("failing");
    failing["spec"]["podTemplate"]["spec"]["containers"][0]["command"] = serde_json::json!(["/bin/false"]);
    space.create_template(failing).await;
    let config = space
        .config(Mode::InCluster)
        .replace("[kubernetes]\n", "[kubernetes]\nimage_grace = \"3s\"\n");
    let server = sandgate_tests::server::Server::with_config(&config).await;
    let client = server.client().await;
    for (template, words) in [
        ("missing", "not on the node"),
        ("failing", "its pod failed"),
        ("wrong", "expected sandgate-runtime"),
    ] {
        let refused = client
            .create()
            .name(new_name())
            .template(template)
            .send()
            .await
            .unwrap_err();
        assert_eq!(refused.reason(), Some(v1::ErrorReason::SandboxFailed), "{refused:?}");
        assert!(refused.to_string().contains(words), "{template}: {refused}");
    }
    space.close().await;
}
