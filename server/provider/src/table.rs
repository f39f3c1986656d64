//! All sandboxes as they are now, and what changed lately.
//!
//! Watch has to tell of every change, also to a caller that was away for a moment. So changes are numbered, and the last
//! ones are kept; whoever is further behind gets everything anew.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandgate_proto::v1::{EndCause, Sandbox, SandboxDeleted};
use tokio::{sync::watch, time};

use crate::selector::Selector;

/// How many changes are kept for callers that come back.
const KEPT: usize = 2_000;

/// What a server knows of its sandboxes.
#[derive(Debug)]
pub struct Table {
    known: Mutex<Known>,
    ticks: watch::Sender<u64>,
    /// Another start of the server counts anew, and must not be mistaken for this one.
    epoch: String,
}

/// A place in the feed of changes. Written as `EPOCH.NUMBER`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position(u64);

/// A change. The sandbox as it was before tells whether a selector lost it.
#[derive(Debug, Clone)]
pub enum Event {
    /// It was made or changed.
    Put {
        /// As it is now.
        now: Arc<Sandbox>,
        /// As it was.
        before: Option<Arc<Sandbox>>,
    },
    /// It is gone.
    Gone {
        /// What to tell.
        told: SandboxDeleted,
        /// As it was.
        before: Arc<Sandbox>,
    },
}

#[derive(Debug, Default)]
struct Known {
    sandboxes: BTreeMap<String, Arc<Sandbox>>,
    recent: VecDeque<Event>,
    /// The number of the newest change; the first has number 1.
    newest: u64,
}

/// A look at the table for [`Table::wait`].
#[derive(Debug)]
pub struct Now<'a>(&'a BTreeMap<String, Arc<Sandbox>>);

// === impl Now ===

impl Now<'_> {
    /// The sandbox of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Sandbox> {
        self.0.get(name).map(|sandbox| &**sandbox)
    }
}

// === impl Table ===

impl Table {
    /// An empty table. `epoch` is another one for every start of a server.
    #[must_use]
    pub fn new(epoch: impl Into<String>) -> Self {
        Self {
            known: Mutex::default(),
            ticks: watch::Sender::new(0),
            epoch: epoch.into(),
        }
    }

    /// The sandbox of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Sandbox>> {
        self.known().sandboxes.get(name).cloned()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known().sandboxes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Up to `limit` sandboxes that match, by name, behind `after`; and whether there are more.
    #[must_use]
    pub fn list(&self, selector: &Selector, after: &str, limit: usize) -> (Vec<Arc<Sandbox>>, bool) {
        let known = self.known();
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let all = known.sandboxes.range::<str, _>(range).map(|(_, sandbox)| sandbox);
        let mut page: Vec<_> = all
            .filter(|sandbox| selector.matches(&sandbox.labels))
            .take(limit + 1)
            .cloned()
            .collect();
        let more = page.len() > limit;
        page.truncate(limit);
        (page, more)
    }

    /// Makes it known. The etag is the caller's to set.
    pub fn put(&self, sandbox: impl Into<Arc<Sandbox>>) -> Arc<Sandbox> {
        let now = sandbox.into();
        let mut known = self.known();
        let before = known.sandboxes.insert(now.name.clone(), Arc::clone(&now));
        known.note(Event::Put {
            now: Arc::clone(&now),
            before,
        });
        self.tick(known);
        now
    }

    /// Forgets it, if it still has that uid.
    pub fn remove(&self, name: &str, uid: &str, cause: EndCause, message: impl Into<String>) {
        let mut known = self.known();
        if known.sandboxes.get(name).is_none_or(|sandbox| sandbox.uid != uid) {
            return;
        }
        let Some(before) = known.sandboxes.remove(name) else {
            return;
        };
        let told = SandboxDeleted {
            name: name.to_owned(),
            uid: uid.to_owned(),
            cause: cause.into(),
            message: message.into(),
        };
        known.note(Event::Gone { told, before });
        self.tick(known);
    }

    /// How a sandbox ended that is gone. `None`: it is not, or that was too long ago to remember.
    #[must_use]
    pub fn end_of(&self, uid: &str) -> Option<SandboxDeleted> {
        let known = self.known();
        known.recent.iter().rev().find_map(|event| match event {
            Event::Gone { told, .. } if told.uid == uid => Some(told.clone()),
            _ => None,
        })
    }

    /// Everything that matches, and the place in the feed behind it.
    #[must_use]
    pub fn snapshot(&self, selector: &Selector) -> (Vec<Arc<Sandbox>>, Position) {
        let known = self.known();
        let all = known.sandboxes.values();
        let matching = all.filter(|sandbox| selector.matches(&sandbox.labels)).cloned();
        (matching.collect(), Position(known.newest))
    }

    /// What happened behind `position`, and the place behind that. `None`: too much to remember.
    #[must_use]
    pub fn since(&self, position: Position) -> Option<(Vec<Event>, Position)> {
        let known = self.known();
        let oldest = known.newest - known.recent.len() as u64;
        let skip = usize::try_from(position.0.checked_sub(oldest)?).ok()?;
        if position.0 > known.newest {
            return None;
        }
        let events = known.recent.iter().skip(skip).cloned().collect();
        Some((events, Position(known.newest)))
    }

    /// A receiver that is told of every change.
    #[must_use]
    pub fn ticks(&self) -> watch::Receiver<u64> {
        self.ticks.subscribe()
    }

    /// Waits until `done` holds, at most for `span`. Tells whether it did.
    pub async fn wait(&self, span: Duration, done: impl Fn(Now<'_>) -> bool) -> bool {
        let mut ticks = self.ticks();
        let until_done = async {
            loop {
                ticks.mark_unchanged();
                let holds = done(Now(&self.known().sandboxes));
                if holds || ticks.changed().await.is_err() {
                    return holds;
                }
            }
        };
        time::timeout(span, until_done).await.unwrap_or(false)
    }

    /// The token for a caller that is at `position`.
    #[must_use]
    pub fn token(&self, position: Position) -> String {
        format!("{}.{}", self.epoch, position.0)
    }

    /// The place that a token means. `None`: of another start of the server, or no token of ours.
    #[must_use]
    pub fn position(&self, token: &str) -> Option<Position> {
        let (epoch, number) = token.rsplit_once('.')?;
        (epoch == self.epoch).then_some(())?;
        number.parse().ok().map(Position)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self, known: MutexGuard<'_, Known>) {
        let newest = known.newest;
        drop(known);
        self.ticks.send_replace(newest);
    }
}

// === impl Known ===

impl Known {
    fn note(&mut self, event: Event) {
        self.newest += 1;
        self.recent.push_back(event);
        if self.recent.len() > KEPT {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(name: &str, uid: &str) -> Sandbox {
        Sandbox {
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..Sandbox::default()
        }
    }

    #[test]
    fn a_token_of_another_start_or_too_far_behind_begins_anew() {
        let table = Table::new("e1");
        let (_, start) = table.snapshot(&Selector::all());
        for i in 0..KEPT {
            table.put(sandbox("a", &i.to_string()));
        }
        assert_eq!(table.since(start).unwrap().0.len(), KEPT);
        table.put(sandbox("b", "1"));
        assert!(table.since(start).is_none());
        let (_, now) = table.snapshot(&Selector::all());
        assert_eq!(table.position(&table.token(now)), Some(now));
        assert_eq!(Table::new("e2").position(&table.token(now)), None);
        assert_eq!(table.position("nonsense"), None);
        assert!(table.since(Position(now.0 + 1)).is_none());
    }

    #[test]
    fn a_removal_of_another_uid_removes_nothing() {
        let table = Table::new("e");
        table.put(sandbox("a", "1"));
        table.remove("a", "2", EndCause::Deleted, "");
        assert_eq!(table.len(), 1);
        assert_eq!(table.end_of("1"), None);
        table.remove("a", "1", EndCause::Deleted, "why");
        assert!(table.is_empty());
        assert_eq!(table.end_of("1").unwrap().message, "why");
    }

    #[test]
    fn pages_end_and_follow_each_other() {
        let table = Table::new("e");
        for name in ["c", "a", "b"] {
            table.put(sandbox(name, name));
        }
        let names = |page: &[Arc<Sandbox>]| page.iter().map(|s| s.name.clone()).collect::<Vec<_>>();
        let (page, more) = table.list(&Selector::all(), "", 2);
        assert_eq!((names(&page), more), (vec!["a".into(), "b".into()], true));
        let (page, more) = table.list(&Selector::all(), "b", 2);
        assert_eq!((names(&page), more), (vec!["c".into()], false));
    }

    #[tokio::test]
    async fn a_waiter_is_told() {
        let table = Arc::new(Table::new("e"));
        let waiting = tokio::spawn({
            let table = Arc::clone(&table);
            async move { table.wait(Duration::from_secs(60), |now| now.get("a").is_some()).await }
        });
        table.put(sandbox("a", "1"));
        assert!(waiting.await.unwrap());
        assert!(!table.wait(Duration::ZERO, |now| now.get("b").is_some()).await);
    }
}
