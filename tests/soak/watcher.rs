//! One more client, which watches all sandboxes through all the trouble. What it is told must add up to what there is.

use std::{
    collections::{BTreeMap, HashSet},
    panic::resume_unwind,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use sandgate::{
    Client, Error,
    v1::{self, SandboxState, watch_response::Event},
};
use tokio::{task::JoinHandle, time};

const RETRY: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that watches.
pub(crate) struct Watcher {
    known: Arc<Mutex<Known>>,
    watching: JoinHandle<()>,
}

/// What it was told.
#[derive(Debug, Default)]
struct Known {
    sandboxes: BTreeMap<String, Facts>,
    /// Uids of those that are gone.
    gone: HashSet<String>,
}

/// Uid, incarnation, state.
type Facts = (String, String, SandboxState);

// === impl Watcher ===

impl Watcher {
    pub(crate) fn begin(client: Client) -> Self {
        let known: Arc<Mutex<Known>> = Arc::default();
        let watching = tokio::spawn(watch(client, Arc::clone(&known)));
        Self { known, watching }
    }

    /// Waits until what it was told is what there is. Nothing may be done to sandboxes meanwhile.
    pub(crate) async fn until_it_knows(mut self, client: &Client) {
        let listed = client.list("").await.unwrap();
        let there: BTreeMap<_, _> = listed
            .iter()
            .map(|sandbox| (sandbox.name.clone(), facts(sandbox)))
            .collect();
        let begun = Instant::now();
        loop {
            let told = self
                .known
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .sandboxes
                .clone();
            if self.watching.is_finished() {
                resume_unwind((&mut self.watching).await.unwrap_err().into_panic());
            }
            if told == there {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "the watcher was told {told:#?}, there are {there:#?}"
            );
            time::sleep(RETRY).await;
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Watches, again and again, each time from where it was.
async fn watch(client: Client, known: Arc<Mutex<Known>>) {
    let mut token = String::new();
    loop {
        let error = Error::from(watch_once(&client, &mut token, &known).await);
        assert!(error.is_unavailable(), "{error:?}");
        time::sleep(RETRY).await;
    }
}

async fn watch_once(client: &Client, token: &mut String, known: &Mutex<Known>) -> tonic::Status {
    let request = v1::WatchRequest {
        label_selector: String::new(),
        resume_token: token.clone(),
    };
    let mut stream = match client.raw().watch(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status,
    };
    loop {
        let message = match stream.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return tonic::Status::unavailable("the watch ended"),
            Err(status) => return status,
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.take(message.event.unwrap());
        if !message.resume_token.is_empty() {
            *token = message.resume_token;
        }
    }
}

// === impl Known ===

impl Known {
    fn take(&mut self, event: Event) {
        match event {
            // All there is follows.
            Event::Snapshot(_) => self.sandboxes.clear(),
            Event::Sandbox(sandbox) => {
                assert!(!self.gone.contains(&sandbox.uid), "it was gone: {sandbox:?}");
                self.sandboxes.insert(sandbox.name.clone(), facts(&sandbox));
            }
            Event::Deleted(deleted) => {
                let of_that_uid = |(uid, ..): &Facts| *uid == deleted.uid;
                if self.sandboxes.get(&deleted.name).is_some_and(of_that_uid) {
                    self.sandboxes.remove(&deleted.name);
                }
                self.gone.insert(deleted.uid);
            }
            Event::Synced(_) | Event::Heartbeat(_) => {}
        }
    }
}

fn facts(sandbox: &v1::Sandbox) -> Facts {
    (sandbox.uid.clone(), sandbox.incarnation.clone(), sandbox.state())
}
