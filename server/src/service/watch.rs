//! Watch: all sandboxes there are, then every change.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures_util::stream::unfold;
use sandgate_proto::v1::{
    Heartbeat, Sandbox, SandboxDeleted, WatchResponse, WatchSnapshot, WatchSynced, watch_response::Event as Told,
};
use sandgate_provider::{Event, Position, Selector, Table};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tonic::{Status, codegen::BoxStream};

use super::{stopping, tokens};
use crate::stopping::Stopping;

/// After this long without a message a heartbeat is sent.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// One watch. What a slow caller has not taken yet is in the table, not here, but for one batch of changes.
struct Feed {
    table: Arc<Table>,
    selector: Selector,
    stopping: Stopping,
    ticks: watch::Receiver<u64>,
    /// What is to be told next.
    queue: VecDeque<Next>,
    /// Where the table was when the queue was filled. `None`: it never was.
    position: Option<Position>,
    /// When the next heartbeat is due.
    silent_until: Instant,
}

/// A message that becomes one when it is sent: a sandbox is copied then, and not while it waits.
enum Next {
    Snapshot,
    Sandbox(Arc<Sandbox>),
    Deleted(SandboxDeleted),
    Synced,
}

/// Opens a watch that goes on behind `resume_token`, if that can be had.
pub(super) fn watch(
    table: &Arc<Table>,
    selector: Selector,
    resume_token: &str,
    stopping: Stopping,
) -> BoxStream<WatchResponse> {
    let feed = Feed::open(table, selector, resume_token, stopping);
    Box::pin(unfold(Some(feed), |feed| async {
        let mut feed = feed?;
        match feed.next().await {
            Ok(message) => Some((Ok(message), Some(feed))),
            Err(status) => Some((Err(status), None)),
        }
    }))
}

// === impl Feed ===

impl Feed {
    fn open(table: &Arc<Table>, selector: Selector, resume_token: &str, stopping: Stopping) -> Self {
        // Before the table is read: a change in between is told twice rather than never.
        let ticks = table.ticks();
        let position = tokens::resume_at(&selector, table, resume_token);
        let mut feed = Self {
            table: Arc::clone(table),
            selector,
            stopping,
            ticks,
            queue: VecDeque::new(),
            position,
            silent_until: Instant::now() + HEARTBEAT,
        };
        if feed.catch_up() {
            feed.queue.push_back(Next::Synced);
        } else {
            feed.begin_anew();
        }
        feed
    }

    async fn next(&mut self) -> Result<WatchResponse, Status> {
        loop {
            if self.stopping.is_begun() {
                return Err(stopping().into());
            }
            if let Some(next) = self.queue.pop_front() {
                return Ok(self.tell(next.into()));
            }
            self.ticks.mark_unchanged();
            if !self.catch_up() {
                self.begin_anew();
            }
            if self.queue.is_empty() && !self.changed().await {
                return Ok(self.tell(Told::Heartbeat(Heartbeat {})));
            }
        }
    }

    /// Waits for a change of anything, or until a heartbeat is due: then it answers `false`.
    async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = timeout_at(self.silent_until, self.ticks.changed()) => changed.is_ok(),
            () = self.stopping.begun() => true,
        }
    }

    /// A message as it is sent. Only the last of a batch has a token: a caller that has the others would miss the rest.
    fn tell(&mut self, event: Told) -> WatchResponse {
        self.silent_until = Instant::now() + HEARTBEAT;
        let resume_token = match self.position {
            Some(position) if self.queue.is_empty() => tokens::resume(&self.selector, &self.table, position),
            _ => String::new(),
        };
        WatchResponse {
            event: Some(event),
            resume_token,
        }
    }

    /// Queues what happened since. `false`: the table has forgotten some of it.
    fn catch_up(&mut self) -> bool {
        let Some((events, position)) = self.position.and_then(|position| self.table.since(position)) else {
            return false;
        };
        self.position = Some(position);
        let selector = &self.selector;
        self.queue
            .extend(events.into_iter().filter_map(|event| as_seen(selector, event)));
        true
    }

    fn begin_anew(&mut self) {
        let (sandboxes, position) = self.table.snapshot(&self.selector);
        self.position = Some(position);
        self.queue.push_back(Next::Snapshot);
        self.queue.extend(sandboxes.into_iter().map(Next::Sandbox));
        self.queue.push_back(Next::Synced);
    }
}

impl From<Next> for Told {
    fn from(next: Next) -> Self {
        match next {
            Next::Snapshot => Self::Snapshot(WatchSnapshot {}),
            Next::Sandbox(sandbox) => Self::Sandbox(Arc::unwrap_or_clone(sandbox)),
            Next::Deleted(deleted) => Self::Deleted(deleted),
            Next::Synced => Self::Synced(WatchSynced {}),
        }
    }
}

/// What a change is to a caller that sees only what the selector selects.
fn as_seen(selector: &Selector, event: Event) -> Option<Next> {
    let seen = |sandbox: &Sandbox| selector.matches(&sandbox.labels);
    match event {
        Event::Put { now, .. } if seen(&now) => Some(Next::Sandbox(now)),
        Event::Put { now, before } => before.filter(|before| seen(before)).map(|before| {
            Next::Deleted(SandboxDeleted {
                name: before.name.clone(),
                uid: before.uid.clone(),
                message: format!("the labels of sandbox {} no longer match", now.name),
                ..SandboxDeleted::default()
            })
        }),
        Event::Gone { told, before } => seen(&before).then_some(Next::Deleted(told)),
    }
}

#[cfg(test)]
mod tests {
    use sandgate_errors::Refusal;
    use sandgate_proto::v1::{EndCause, ErrorReason};
    use tokio_stream::StreamExt as _;

    use super::*;

    fn put(table: &Table, name: &str, team: &str) {
        table.put(Sandbox {
            name: name.to_owned(),
            uid: name.to_owned(),
            labels: [("team".to_owned(), team.to_owned())].into(),
            ..Sandbox::default()
        });
    }

    fn open(table: &Arc<Table>, token: &str) -> BoxStream<WatchResponse> {
        open_until(table, token, Stopping::default())
    }

    fn open_until(table: &Arc<Table>, token: &str, stopping: Stopping) -> BoxStream<WatchResponse> {
        let selector = Selector::parse("label_selector", "team=red").unwrap();
        watch(table, selector, token, stopping)
    }

    /// The next messages up to one with a token, as words, and the token.
    async fn batch(watch: &mut BoxStream<WatchResponse>) -> (Vec<String>, String) {
        let mut words = Vec::new();
        loop {
            let WatchResponse { event, resume_token } = watch.next().await.unwrap().unwrap();
            words.push(match event.unwrap() {
                Told::Snapshot(_) => "snapshot".into(),
                Told::Sandbox(sandbox) => format!("+{}", sandbox.name),
                Told::Deleted(deleted) => format!("-{} {:?}", deleted.name, deleted.cause()),
                Told::Synced(_) => "synced".into(),
                Told::Heartbeat(_) => "heartbeat".into(),
            });
            if !resume_token.is_empty() {
                return (words, resume_token);
            }
        }
    }

    #[tokio::test]
    async fn a_snapshot_then_every_change_that_the_selector_shows() {
        let table = Arc::new(Table::new("e"));
        put(&table, "a", "red");
        put(&table, "b", "blue");
        let mut watch = open(&table, "");
        assert_eq!(batch(&mut watch).await.0, ["snapshot", "+a", "synced"]);
        put(&table, "c", "red");
        put(&table, "b", "green");
        assert_eq!(batch(&mut watch).await.0, ["+c"]);
        put(&table, "a", "blue");
        assert_eq!(batch(&mut watch).await.0, ["-a Unspecified"]);
        put(&table, "a", "red");
        table.remove("b", "b", EndCause::Deleted, "");
        table.remove("c", "c", EndCause::Idle, "");
        assert_eq!(batch(&mut watch).await.0, ["+a", "-c Idle"]);
    }

    #[tokio::test]
    async fn a_watch_goes_on_where_its_token_says() {
        let table = Arc::new(Table::new("e"));
        put(&table, "a", "red");
        let (_, token) = batch(&mut open(&table, "")).await;
        assert_eq!(batch(&mut open(&table, &token)).await.0, ["synced"]);
        put(&table, "b", "red");
        table.remove("a", "a", EndCause::Deadline, "");
        let (told, later) = batch(&mut open(&table, &token)).await;
        assert_eq!(told, ["+b", "-a Deadline", "synced"]);
        assert_eq!(batch(&mut open(&table, &later)).await.0, ["synced"]);
        assert_eq!(
            batch(&mut open(&table, "nonsense")).await.0,
            ["snapshot", "+b", "synced"]
        );
    }

    #[tokio::test]
    async fn a_watch_that_fell_too_far_behind_gets_everything_anew() {
        let table = Arc::new(Table::new("e"));
        put(&table, "a", "red");
        let mut slow = open(&table, "");
        let (_, token) = batch(&mut slow).await;
        table.remove("a", "a", EndCause::Deleted, "");
        for _ in 0..20_000 {
            put(&table, "b", "red");
        }
        assert_eq!(batch(&mut slow).await.0, ["snapshot", "+b", "synced"]);
        assert_eq!(batch(&mut open(&table, &token)).await.0, ["snapshot", "+b", "synced"]);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken_by_heartbeats_with_the_newest_token() {
        let table = Arc::new(Table::new("e"));
        let mut watch = open(&table, "");
        let (_, first) = batch(&mut watch).await;
        put(&table, "b", "blue");
        let (told, later) = batch(&mut watch).await;
        assert_eq!(told, ["heartbeat"]);
        assert_ne!(first, later);
    }

    #[tokio::test]
    async fn a_server_that_stops_ends_it() {
        let table = Arc::new(Table::new("e"));
        let stopping = Stopping::default();
        let mut watch = open_until(&table, "", stopping.clone());
        batch(&mut watch).await;
        let ended = tokio::spawn(async move { (watch.next().await.unwrap().unwrap_err(), watch.next().await) });
        tokio::task::yield_now().await;
        stopping.begin();
        let (status, rest) = ended.await.unwrap();
        assert_eq!(Refusal::from_status(&status).unwrap().reason, ErrorReason::Stopping);
        assert!(rest.is_none());
    }
}
