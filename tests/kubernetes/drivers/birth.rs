//! How such sandboxes begin and end: environments, leases, and ways that they can't be reached by.

use std::time::Duration;

use sandgate::{Created, v1};
use sandgate_kubernetes_tests::{Mode, Space, until};
use sandgate_tests::conformance::{new_name, sh};

use super::{in_time, stage};

async fn claim_text(space: &Space, made: &Created) -> String {
    let claim = space.claims().get(&made.info.name).await.unwrap();
    serde_json::to_string(&claim).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxd_starts_warm_with_an_environment() {
    in_time(async {
        let (space, mut server) = stage("sandboxd", Mode::InCluster).await;
        space.create_pool("pool", "sandboxd", 1).await;
        let client = server.client().await;
        let created = client.create().name(new_name()).env("MINE", "secret-value");
        let made = created.send().await.unwrap();
        let start = made.info.start.as_ref().unwrap();
        assert_eq!(start.kind(), v1::StartKind::Warm, "{start:?}");
        assert_eq!(sh(&made.sandbox, "echo $MINE").await, "secret-value\n");
        assert!(!claim_text(&space, &made).await.contains("secret-value"));
        // Every server knows it, not only the one that was there when it began.
        server.kill();
        server.restart().await;
        let found = server.client().await.sandbox(&made.info.name);
        assert_eq!(sh(&found, "echo $MINE").await, "secret-value\n");
        found.delete().await.unwrap();
        space.close().await;
    })
    .await;
}

async fn env_makes_it_cold(driver: &str, mode: Mode) {
    let (space, server) = stage(driver, mode).await;
    space.create_pool("pool", driver, 1).await;
    let client = server.client().await;
    let made = client
        .create()
        .name(new_name())
        .env("MINE", "value")
        .send()
        .await
        .unwrap();
    let start = made.info.start.as_ref().unwrap();
    assert_eq!(
        (start.kind(), start.cold_reason()),
        (v1::StartKind::Cold, v1::ColdReason::Env),
        "{start:?}"
    );
    assert!(start.message.contains("leave env out"), "{start:?}");
    assert_eq!(sh(&made.sandbox, "echo $MINE").await, "value\n");
    let warm = client.create().name(new_name()).send().await.unwrap();
    let start = warm.info.start.as_ref().unwrap();
    assert_eq!(start.kind(), v1::StartKind::Warm, "the pool was left alone: {start:?}");
    made.sandbox.delete().await.unwrap();
    warm.sandbox.delete().await.unwrap();
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_starts_cold_with_an_environment() {
    in_time(env_makes_it_cold("exec", Mode::Tunnel)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_runtime_starts_cold_with_an_environment() {
    in_time(env_makes_it_cold("python-runtime", Mode::InCluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ways_that_do_not_lead_there_are_refused_and_leave_nothing() {
    in_time(async {
        for (driver, mode, word) in [
            ("sandboxd", Mode::Direct, "carries no gRPC"),
            ("sandboxd", Mode::Gateway, "carries no gRPC"),
            ("exec", Mode::InCluster, "API server's exec"),
            ("exec", Mode::Direct, "API server's exec"),
        ] {
            let (space, server) = stage(driver, mode).await;
            let refused = server
                .client()
                .await
                .create()
                .name(new_name())
                .send()
                .await
                .unwrap_err();
            let refused = refused.refused().unwrap();
            assert_eq!(
                (refused.reason, refused.field.as_deref()),
                (Some(v1::ErrorReason::InvalidArgument), Some("connection_mode")),
                "{driver}: {refused:?}"
            );
            assert!(refused.message.contains(word), "{driver}: {}", refused.message);
            space.close().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_limit_is_a_lease_of_the_claim_while_it_runs() {
    in_time(async {
        let (space, server) = stage("exec", Mode::Tunnel).await;
        let client = server.client().await;
        let wanted = client.create().name(new_name()).ttl(Duration::from_secs(3_600));
        let short = client.create().name(new_name()).idle_limit(Duration::from_secs(179));
        assert_eq!(
            short.send().await.unwrap_err().refused().unwrap().field.as_deref(),
            Some("idle_limit")
        );
        let made = wanted.idle_limit(Duration::from_secs(180)).send().await.unwrap();
        let deadline = made.info.deadline.unwrap().seconds;
        let left = async || deadline - ends(&space, &made).await;
        // Written behind the answer, as all that is only to be remembered.
        until(async || (3_400..3_430).contains(&left().await)).await;
        // One that sleeps is kept until its deadline.
        made.sandbox.suspend(None).await.unwrap();
        assert!((-1..=1).contains(&left().await), "{}", left().await);
        made.sandbox.resume().await.unwrap();
        until(async || (3_000..3_430).contains(&left().await)).await;
        let open = made
            .info
            .enforcement
            .iter()
            .any(|rule| rule.rule == "runtime.authentication");
        assert!(!open, "the API server knows who asks: {:?}", made.info.enforcement);
        made.sandbox.delete().await.unwrap();
        space.close().await;
    })
    .await;
}

/// When a claim ends by itself, in seconds since 1970.
async fn ends(space: &Space, made: &Created) -> i64 {
    let claim = space.claims().get(&made.info.name).await.unwrap();
    let ends = &claim.data["spec"]["lifecycle"]["shutdownTime"];
    let ends: k8s_openapi::jiff::Timestamp = ends.as_str().unwrap().parse().unwrap();
    ends.as_second()
}
