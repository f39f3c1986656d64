//! Sandboxes as callers make, find and end them, with a provider that only pretends.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/serving.rs"]
mod serving;

use std::{path::Path, sync::atomic::Ordering, time::Duration};

use sandgate_proto::v1::{
    AttachRequest, CreateRequest, DeleteRequest, ErrorReason, GetRequest, SandboxSettings, SandboxState,
    SuspendRequest, UpdateRequest, WatchRequest, watch_response::Event,
};
use sandgate_provider::{Provider as _, Selector};
use tonic::Code;

use self::{
    fake::Fake,
    serving::{Serving, reason},
};

const NOWHERE: &str = "/nowhere";

fn create(name: &str) -> CreateRequest {
    CreateRequest {
        name: name.to_owned(),
        ..CreateRequest::default()
    }
}

fn get(name: &str) -> GetRequest {
    GetRequest {
        sandbox: name.to_owned(),
    }
}

fn span(span: Duration) -> Option<prost_types::Duration> {
    span.try_into().ok()
}

/// Waits until something holds.
async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_create_waits_until_the_sandbox_is_ready() {
    let fake = Fake::new();
    let mut serving = Serving::start(fake.clone()).await;
    let mut client = serving.client.clone();
    let waiting = tokio::spawn(async move { client.create(create("box")).await });
    until(|| fake.table().get("box").is_some()).await;
    assert!(!waiting.is_finished());
    fake.set("box", |sandbox| sandbox.set_state(SandboxState::Ready));
    let answer = waiting.await.unwrap().unwrap().into_inner();
    assert_eq!(answer.sandbox.unwrap().state(), SandboxState::Ready);
    assert!(answer.created);
    let again = serving.client.create(create("box")).await.unwrap().into_inner();
    assert!(!again.created);
}

#[tokio::test]
async fn a_create_whose_wait_is_over_answers_the_sandbox_as_it_is() {
    let mut serving = Serving::start(Fake::new()).await;
    for (name, no_wait, max_wait) in [("a", true, None), ("b", false, span(Duration::from_millis(5)))] {
        let request = CreateRequest {
            no_wait,
            max_wait,
            ..create(name)
        };
        let sandbox = serving
            .client
            .create(request)
            .await
            .unwrap()
            .into_inner()
            .sandbox
            .unwrap();
        assert_eq!((sandbox.name.as_str(), sandbox.state()), (name, SandboxState::Creating));
    }
}

#[tokio::test]
async fn an_unnamed_sandbox_whose_creator_leaves_is_removed() {
    let fake = Fake::new();
    let serving = Serving::start(fake.clone()).await;
    let everything = || fake.table().snapshot(&Selector::all()).0;

    // While it is being made.
    let permits = fake.creating.forget_permits(usize::MAX);
    let mut client = serving.client.clone();
    let leaving = tokio::spawn(async move { client.create(create("")).await });
    until(|| fake.asked.load(Ordering::Relaxed) == 1).await;
    leaving.abort();
    // Whether the server notices before or after the sandbox is made must not matter.
    tokio::time::sleep(Duration::from_millis(20)).await;
    fake.creating.add_permits(permits);
    until(|| fake.deletes.lock().unwrap().len() == 1).await;
    until(|| everything().is_empty()).await;

    // While it is waited for.
    let mut client = serving.client.clone();
    let leaving = tokio::spawn(async move { client.create(create("")).await });
    until(|| everything().len() == 1).await;
    let sandbox = everything().remove(0);
    leaving.abort();
    until(|| everything().is_empty()).await;
    let deleted = fake.deletes.lock().unwrap().last().cloned();
    assert_eq!(deleted, Some((sandbox.name.clone(), Some(sandbox.uid.clone()))));
}

#[tokio::test]
async fn a_sandbox_that_its_creator_can_find_again_stays() {
    let fake = Fake::new();
    let mut serving = Serving::start(fake.clone()).await;
    let mut client = serving.client.clone();
    let leaving = tokio::spawn(async move { client.create(create("box")).await });
    until(|| fake.table().get("box").is_some()).await;
    leaving.abort();
    _ = leaving.await;
    let answered = CreateRequest {
        no_wait: true,
        ..create("")
    };
    let answered = serving
        .client
        .create(answered)
        .await
        .unwrap()
        .into_inner()
        .sandbox
        .unwrap();
    assert_eq!(answered.state(), SandboxState::Creating);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(fake.deletes.lock().unwrap().is_empty());
    assert_eq!(fake.table().len(), 2);
}

#[tokio::test]
async fn a_server_that_stops_sends_waiting_callers_away_and_loses_no_sandbox() {
    let fake = Fake::new();
    let serving = Serving::start(fake.clone()).await;
    let wait = |name: &'static str| {
        let mut client = serving.client.clone();
        tokio::spawn(async move { client.create(create(name)).await })
    };
    let (named, unnamed) = (wait("box"), wait(""));
    until(|| fake.table().len() == 2).await;
    serving.stopping.begin();
    let status = named.await.unwrap().unwrap_err();
    assert_eq!(
        (reason(&status), status.code()),
        (ErrorReason::Stopping, Code::Unavailable)
    );
    // It has no other way to learn the name.
    let sandbox = unnamed.await.unwrap().unwrap().into_inner().sandbox.unwrap();
    assert_eq!(sandbox.state(), SandboxState::Creating);
    assert!(fake.table().get(&sandbox.name).is_some());
    assert!(fake.deletes.lock().unwrap().is_empty());
}

#[tokio::test]
async fn usage_is_told_by_get_and_of_running_sandboxes_only() {
    let fake = Fake::new();
    let mut serving = Serving::start(fake.clone()).await;
    let client = &mut serving.client;
    fake.add("box", "i1", Path::new(NOWHERE));
    let sandbox = client.get(get("box")).await.unwrap().into_inner().sandbox.unwrap();
    assert_eq!(sandbox.usage.unwrap().processes, Some(3));
    fake.fall_asleep("box");
    let sandbox = client.get(get("box")).await.unwrap().into_inner().sandbox.unwrap();
    assert_eq!(sandbox.usage, None);
    let status = client.get(get("other")).await.unwrap_err();
    assert_eq!(reason(&status), ErrorReason::SandboxNotFound);
}

#[tokio::test]
async fn attach_resumes_and_delete_may_be_repeated() {
    let fake = Fake::new();
    let mut serving = Serving::start(fake.clone()).await;
    let client = &mut serving.client;
    fake.add("box", "i1", Path::new(NOWHERE));
    let attach = || AttachRequest {
        sandbox: "box".into(),
        ..AttachRequest::default()
    };
    assert!(!client.attach(attach()).await.unwrap().into_inner().resumed);
    let suspend = SuspendRequest {
        sandbox: "box".into(),
        ..SuspendRequest::default()
    };
    let asleep = client.suspend(suspend).await.unwrap().into_inner().sandbox.unwrap();
    assert_eq!(asleep.state(), SandboxState::Suspended);
    let awake = client.attach(attach()).await.unwrap().into_inner();
    assert!(awake.resumed);
    assert_ne!(awake.sandbox.unwrap().incarnation, "i1");

    let delete = |expected_uid: &str| DeleteRequest {
        sandbox: "box".into(),
        expected_uid: expected_uid.to_owned(),
        ..DeleteRequest::default()
    };
    assert!(client.delete(delete("")).await.unwrap().into_inner().existed);
    assert!(!client.delete(delete("u")).await.unwrap().into_inner().existed);
    let uids: Vec<_> = fake
        .deletes
        .lock()
        .unwrap()
        .iter()
        .map(|(_, uid)| uid.clone())
        .collect();
    assert_eq!(uids, [None, Some("u".to_owned())]);
    let status = client.attach(attach()).await.unwrap_err();
    assert_eq!(reason(&status), ErrorReason::SandboxNotFound);
}

#[tokio::test]
async fn an_update_is_told_to_watchers() {
    let fake = Fake::new();
    let mut serving = Serving::start(fake.clone()).await;
    let client = &mut serving.client;
    fake.add("box", "i1", Path::new(NOWHERE));
    let update = |etag: &str| UpdateRequest {
        sandbox: "box".into(),
        settings: Some(SandboxSettings {
            labels: [("team".to_owned(), "red".to_owned())].into(),
            ..SandboxSettings::default()
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["labels".to_owned()],
        }),
        etag: etag.to_owned(),
    };
    let red = WatchRequest {
        label_selector: "team=red".into(),
        ..WatchRequest::default()
    };
    let mut told = client.watch(red).await.unwrap().into_inner();
    for _ in ["snapshot", "synced"] {
        told.message().await.unwrap().unwrap();
    }
    let status = client.update(update("old")).await.unwrap_err();
    assert_eq!(reason(&status), ErrorReason::EtagMismatch);
    client.update(update(Fake::ETAG)).await.unwrap();
    assert_eq!(fake.changed.lock().unwrap().as_ref().unwrap().end, None);
    let Some(Event::Sandbox(sandbox)) = told.message().await.unwrap().unwrap().event else {
        panic!("not a sandbox")
    };
    assert_eq!(sandbox.labels["team"], "red");
    serving.stopping.begin();
    assert_eq!(reason(&told.message().await.unwrap_err()), ErrorReason::Stopping);
}
