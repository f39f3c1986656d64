//! A hundred claims at once, through two servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{collections::BTreeMap, env, fs, time::Duration};

use sandgate::v1;
use sandgate_kubernetes_tests::{Mode, Space};
use sandgate_tests::conformance::{new_name, sh};
use serde_json::Value;

const CLAIMS: usize = 100;
/// More than this is more than making, extending and removing take.
const REQUESTS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_at_once_are_ready_or_refused_and_none_is_left() {
    let space = Space::new().await;
    let servers = [space.server(Mode::InCluster).await, space.server(Mode::InCluster).await];
    let clients = [servers[0].client().await, servers[1].client().await];
    let creates: Vec<_> = (0..CLAIMS)
        .map(|i| {
            let wanted = clients[i % 2].create().name(new_name()).template("plain");
            tokio::spawn(wanted.max_wait(Duration::from_secs(900)).send())
        })
        .collect();
    let mut made = Vec::new();
    for create in creates {
        match create.await.unwrap() {
            Ok(created) => {
                assert_eq!(
                    created.info.state(),
                    v1::SandboxState::Ready,
                    "{:?}",
                    created.info.state_message
                );
                made.push(created.info.name);
            }
            Err(error) => assert!(error.reason().is_some(), "refused without a reason: {error:?}"),
        }
    }
    assert!(!made.is_empty());
    // Each of them is any server's.
    for (i, name) in made.iter().enumerate() {
        assert_eq!(sh(&clients[(i + 1) % 2].sandbox(name), "echo here").await, "here\n");
    }
    let deletes: Vec<_> = made
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let sandbox = clients[i % 2].sandbox(name);
            tokio::spawn(async move { sandbox.delete().await })
        })
        .collect();
    for delete in deletes {
        assert!(delete.await.unwrap().unwrap().existed);
    }
    space.until_nothing_is_left().await;
    let requests = requests(&space.namespace);
    let of_claims: usize = requests.values().sum();
    println!("{} of {CLAIMS} made, {of_claims} requests: {requests:?}", made.len());
    assert!(of_claims <= REQUESTS * CLAIMS, "{requests:?}");
    space.close().await;
}

/// What our servers asked of the API server in a namespace, but for their watches.
fn requests(namespace: &str) -> BTreeMap<String, usize> {
    let log = env::var("SANDGATE_TEST_AUDIT_LOG").expect("SANDGATE_TEST_AUDIT_LOG names the API server's audit log");
    let mut requests = BTreeMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ours = text(&event["userAgent"]).starts_with("sandgate-server/");
        let verb = text(&event["verb"]);
        if ours && text(&event["objectRef"]["namespace"]) == namespace && !["watch", "list"].contains(&verb.as_str()) {
            let what = format!("{verb} {}", text(&event["objectRef"]["resource"]));
            *requests.entry(what).or_default() += 1;
        }
    }
    requests
}
