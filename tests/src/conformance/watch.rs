//! Being told of every change.

use std::collections::HashMap;

use sandgate::v1::{self, watch_response::Event};
use tokio::time::timeout;
use tonic::Streaming;

use super::{PATIENCE, World, create, new_name};

struct Watching(Streaming<v1::WatchResponse>, String);

impl Watching {
    async fn start(client: &sandgate::Client, selector: &str, resume_token: &str) -> Self {
        let request = v1::WatchRequest {
            label_selector: selector.to_owned(),
            resume_token: resume_token.to_owned(),
        };
        let stream = client.raw().watch(request).await.unwrap().into_inner();
        Self(stream, resume_token.to_owned())
    }

    async fn next(&mut self) -> Event {
        let message = timeout(PATIENCE, self.0.message())
            .await
            .expect("an event comes")
            .unwrap()
            .unwrap();
        if !message.resume_token.is_empty() {
            self.1 = message.resume_token;
        }
        message.event.unwrap()
    }

    /// The next event that is about this sandbox and is what the test waits for.
    async fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.next().await;
            if wanted(&event) {
                return event;
            }
        }
    }
}

/// A watch tells what there is, then what changes; and goes on from where it was.
pub async fn a_watch_tells_every_change(world: &mut impl World) {
    let client = world.client().await;
    let mark = new_name();
    let selector = format!("mark={mark}");
    let labels = HashMap::from([("mark".to_owned(), mark.clone())]);
    let there = create(&client).await;
    there.sandbox.set_labels(labels.clone()).await.unwrap();
    let mut watching = Watching::start(&client, &selector, "").await;
    assert!(matches!(watching.next().await, Event::Snapshot(_)));
    let first = watching.next().await;
    assert!(
        matches!(&first, Event::Sandbox(sandbox) if sandbox.uid == there.info.uid && sandbox.usage.is_none()),
        "{first:?}"
    );
    assert!(matches!(watching.next().await, Event::Synced(_)));
    let new = client
        .create()
        .name(new_name())
        .label("mark", &mark)
        .send()
        .await
        .unwrap();
    let ready = |event: &Event| matches!(event, Event::Sandbox(s) if s.name == new.info.name && s.state() == v1::SandboxState::Ready);
    watching.until(ready).await;
    let token = watching.1.clone();
    assert!(!token.is_empty());
    drop(watching);
    // Missed: labels that stop matching, and a deletion.
    there.sandbox.set_labels(HashMap::new()).await.unwrap();
    new.sandbox.delete().await.unwrap();
    let mut watching = Watching::start(&client, &selector, &token).await;
    let mut missed = Vec::new();
    loop {
        match watching.next().await {
            Event::Synced(_) => break,
            Event::Deleted(deleted) => missed.push((deleted.name.clone(), deleted.cause())),
            Event::Snapshot(_) => panic!("the token was not too old"),
            _ => {}
        }
    }
    assert!(
        missed.contains(&(there.info.name.clone(), v1::EndCause::Unspecified)),
        "{missed:?}"
    );
    assert!(
        missed.contains(&(new.info.name.clone(), v1::EndCause::Deleted)),
        "{missed:?}"
    );
    // A token that nobody knows begins with all there is.
    let mut anew = Watching::start(&client, &selector, "nonsense").await;
    assert!(matches!(anew.next().await, Event::Snapshot(_)));
    assert!(matches!(anew.next().await, Event::Synced(_)));
    there.sandbox.delete().await.unwrap();
}
