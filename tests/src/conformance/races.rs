//! Calls that cross each other.

use std::time::Duration;

use sandgate::v1;

use super::{World, create, new_name, sh};

/// Many creates of one name make one sandbox.
pub async fn creates_at_once_make_one(world: &mut impl World) {
    let client = world.client().await;
    let name = new_name();
    let all: Vec<_> = (0..10)
        .map(|_| {
            let wanted = client.create().name(&name);
            tokio::spawn(wanted.send())
        })
        .collect();
    let mut uids = Vec::new();
    let mut made = 0;
    for each in all {
        let created = each.await.unwrap().unwrap();
        made += usize::from(created.created);
        uids.push(created.info.uid);
    }
    uids.dedup();
    assert_eq!((made, uids.len()), (1, 1));
    client.sandbox(name).delete().await.unwrap();
}

/// Delete and Create of one name at once: no error, and never the old one's files.
pub async fn delete_and_create_at_once(world: &mut impl World) {
    let client = world.client().await;
    let name = new_name();
    let mut old = create_named(&client, &name).await;
    for round in 0..world.rounds() {
        sh(&client.sandbox(&name), "echo old > file").await;
        let (first, second) = (client.sandbox(&name), client.create().name(&name));
        let (deleted, created) = tokio::join!(first.delete(), second.send());
        assert!(deleted.unwrap().existed, "round {round}");
        // Create may have come first and found what was then deleted.
        let now = match created.unwrap_or_else(|error| panic!("round {round}: {error:?}")) {
            created if created.created => created.info.uid,
            _ => create_named(&client, &name).await,
        };
        assert_ne!(now, old);
        sh(&client.sandbox(&name), "test ! -e file").await;
        old = now;
    }
    client.sandbox(name).delete().await.unwrap();
}

async fn create_named(client: &sandgate::Client, name: &str) -> String {
    let created = client.create().name(name).send().await.unwrap();
    assert_eq!(created.info.state(), v1::SandboxState::Ready);
    created.info.uid
}

/// Suspend and Resume at once: no error, and a sandbox that works.
pub async fn suspend_and_resume_at_once(world: &mut impl World) {
    let client = world.client().await;
    let made = create(&client).await;
    for round in 0..world.rounds() {
        let (suspended, resumed) = tokio::join!(made.sandbox.suspend(Some(Duration::ZERO)), made.sandbox.resume());
        suspended.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        resumed.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
    }
    made.sandbox.attach().await.unwrap();
    assert_eq!(sh(&made.sandbox, "echo works").await, "works\n");
    made.sandbox.delete().await.unwrap();
}
