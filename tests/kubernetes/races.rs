//! Calls that cross each other, fifty times each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::{collections::BTreeSet, time::Duration};

use rand::Rng as _;
use sandgate::v1;
use sandgate_kubernetes_tests::{Mode, Space, until};
use sandgate_tests::{
    conformance::{new_name, sh},
    seeded,
};

const ROUNDS: usize = 50;
const CROSSINGS: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delete_and_create_of_one_name_at_once() {
    let space = Space::new().await;
    let servers = [space.server(Mode::InCluster).await, space.server(Mode::InCluster).await];
    let (one, other) = (servers[0].client().await, servers[1].client().await);
    let name = new_name();
    let make = async |client: &sandgate::Client| {
        let created = client.create().name(&name).template("plain").send().await.unwrap();
        assert_eq!(created.info.state(), v1::SandboxState::Ready);
        created.info.uid
    };
    let mut old = make(&one).await;
    for round in 0..ROUNDS {
        sh(&one.sandbox(&name), "echo old > file").await;
        let (first, second) = (one.sandbox(&name), other.create().name(&name).template("plain"));
        let (deleted, created) = tokio::join!(first.delete(), second.send());
        assert!(deleted.unwrap().existed, "round {round}");
        // Create may have come first and found what was then deleted.
        let now = match created.unwrap_or_else(|error| panic!("round {round}: {error:?}")) {
            created if created.created => created.info.uid,
            _ => make(&other).await,
        };
        assert_ne!(now, old, "round {round}");
        sh(&other.sandbox(&name), "test ! -e file").await;
        // The other server may not have heard of it yet.
        make(&one).await;
        old = now;
    }
    one.sandbox(&name).delete().await.unwrap();
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suspend_and_resume_at_once() {
    let space = Space::new().await;
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let made = client.create().name(new_name()).send().await.unwrap();
    sh(&made.sandbox, "echo kept > file").await;
    for round in 0..ROUNDS {
        let (suspended, resumed) = tokio::join!(made.sandbox.suspend(Some(Duration::ZERO)), made.sandbox.resume());
        suspended.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        resumed.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
    }
    made.sandbox.attach().await.unwrap();
    assert_eq!(sh(&made.sandbox, "cat file").await, "kept\n");
    made.sandbox.delete().await.unwrap();
    space.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_while_it_is_being_suspended() {
    let space = Space::new().await;
    let servers = [space.server(Mode::InCluster).await, space.server(Mode::InCluster).await];
    let (client, other) = (servers[0].client().await, servers[1].client().await);
    let made = client.create().name(new_name()).send().await.unwrap();
    let there = other.sandbox(&made.info.name);
    let mut random = seeded();
    let mut incarnations = BTreeSet::from([made.info.incarnation.clone()]);
    for round in 0..CROSSINGS {
        sh(&made.sandbox, &format!("echo {round} >> file")).await;
        // The other server may still have to hear that it is ready: that is not what is waited for below.
        until(async || there.get().await.unwrap().state() == v1::SandboxState::Ready).await;
        let resume = async {
            until(async || there.get().await.unwrap().state() != v1::SandboxState::Ready).await;
            // Somewhere in the middle: its processes end, then its pod does.
            tokio::time::sleep(Duration::from_millis(random.random_range(0..400))).await;
            there.resume().await
        };
        let (suspended, resumed) = tokio::join!(made.sandbox.suspend(Some(Duration::ZERO)), resume);
        suspended.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        let resumed = resumed.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        assert_eq!(resumed.state(), v1::SandboxState::Ready, "round {round}: {resumed:?}");
        assert!(incarnations.insert(resumed.incarnation), "round {round}");
    }
    let lines = sh(&made.sandbox, "wc -l < file").await;
    assert_eq!(lines.trim().parse(), Ok(CROSSINGS), "nothing is lost");
    made.sandbox.delete().await.unwrap();
    space.close().await;
}
