//! One sandbox, as the rest of the provider sees it: a name, a queue of what is to be done, and news of what was.
//!
//! What is done to one sandbox is done in the order in which it was asked for. That is the whole of "the last word
//! wins".

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandgate_errors::Refusal;
use sandgate_proto::v1::{Sandbox, SandboxState};
use sandgate_provider::{Change, Link, Name, Removed};
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    carrier::{Place, Socket},
    usage::Gauge,
};

/// How many may wait for one sandbox before callers wait for a place in the queue.
const QUEUE: usize = 64;
/// Refusals that are kept for callers that come to ask after the sandbox is gone.
const KEPT_REFUSALS: usize = 1024;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, Refusal>>;

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run, if it does not.
    Start {
        /// Told when that has begun.
        begun: oneshot::Sender<()>,
    },
    /// End every process.
    Suspend {
        incarnation: Option<String>,
        grace: Duration,
        answer: Answer<Arc<Sandbox>>,
    },
    /// Change what can be changed.
    Update {
        change: Box<Change>,
        answer: Answer<Arc<Sandbox>>,
    },
    /// Remove it.
    Delete {
        grace: Option<Duration>,
        answer: Answer<Removed>,
    },
}

/// What waits in the queue, and whether there is still somebody to do it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct News {
    starts: u32,
    stops: u32,
    deletes: u32,
    last: Word,
    /// All that is known of it is what lies on disk: its monitor may be ending it for a server that is gone.
    unheard: bool,
    /// It is no longer in the table, or will not be in a moment.
    leaving: bool,
    /// Its name is free.
    pub(crate) gone: bool,
    /// Counts everything that happened.
    version: u64,
}

/// What was asked for last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Word {
    #[default]
    Start,
    Stop,
}

/// A sandbox's place in the provider.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) name: Name,
    pub(crate) uid: String,
    pub(crate) template: String,
    pub(crate) place: Place,
    pub(crate) queue: mpsc::Sender<Command>,
    pub(crate) news: watch::Sender<News>,
    parts: Mutex<Parts>,
}

#[derive(Debug)]
struct Parts {
    link: Link,
    gauge: Gauge,
    /// Why the last start failed.
    refusal: Option<Refusal>,
}

/// All sandboxes, by name.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    pub(crate) by_name: HashMap<Name, Arc<Slot>>,
    /// What became of sandboxes that could not be made, by uid.
    refusals: VecDeque<(String, Refusal)>,
}

// === impl Slot ===

impl Slot {
    pub(crate) fn new(name: Name, uid: String, template: String, dir: PathBuf) -> (Arc<Self>, mpsc::Receiver<Command>) {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let place = Place::new(dir);
        let parts = Parts {
            link: new_link(&place),
            gauge: Gauge::default(),
            refusal: None,
        };
        let slot = Self {
            name,
            uid,
            template,
            place,
            queue,
            news: watch::Sender::default(),
            parts: Mutex::new(parts),
        };
        (Arc::new(slot), inbox)
    }

    pub(crate) fn link(&self) -> Link {
        self.parts().link.clone()
    }

    /// Lets go of connections to what ran before.
    pub(crate) fn renew_link(&self) -> Link {
        let link = new_link(&self.place);
        self.parts().link = link.clone();
        link
    }

    pub(crate) fn gauge(&self) -> Gauge {
        self.parts().gauge.clone()
    }

    pub(crate) fn set_gauge(&self, gauge: Gauge) {
        self.parts().gauge = gauge;
    }

    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.parts().refusal.clone()
    }

    pub(crate) fn set_refusal(&self, refusal: Option<Refusal>) {
        self.parts().refusal = refusal;
    }

    /// Tells those who wait that something has changed.
    pub(crate) fn tick(&self) {
        self.tell(|_| {});
    }

    pub(crate) fn tell(&self, change: impl FnOnce(&mut News)) {
        self.news.send_modify(|news| {
            change(news);
            news.version += 1;
        });
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_link(place: &Place) -> Link {
    Link::new(Arc::new(Socket(place.clone())))
}

// === impl News ===

impl News {
    /// Notes a command that is put into the queue.
    pub(crate) fn queued(&mut self, command: &Command) {
        match command {
            Command::Start { .. } => {
                self.starts += 1;
                self.last = Word::Start;
            }
            Command::Suspend { .. } => {
                self.stops += 1;
                self.last = Word::Stop;
            }
            Command::Delete { .. } => self.deletes += 1,
            Command::Update { .. } => {}
        }
    }

    pub(crate) fn start_done(&mut self) {
        self.starts = self.starts.saturating_sub(1);
    }

    pub(crate) fn stop_done(&mut self) {
        self.stops = self.stops.saturating_sub(1);
    }

    pub(crate) fn delete_done(&mut self) {
        self.deletes = self.deletes.saturating_sub(1);
    }

    /// It was found on disk.
    pub(crate) fn found(&mut self) {
        self.unheard = true;
    }

    /// Its monitor has said how it is.
    pub(crate) fn heard(&mut self) {
        self.unheard = false;
    }

    /// Whether its monitor has said how it is, or nobody else ever looked after it.
    pub(crate) fn is_known(&self) -> bool {
        !self.unheard
    }

    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Its name will soon be free.
    pub(crate) fn leaving(&self) -> bool {
        self.leaving || self.deletes > 0
    }

    /// Whether somebody has to ask for it to run, that it runs in the end.
    pub(crate) fn needs_start(&self, state: SandboxState) -> bool {
        if self.starts + self.stops > 0 {
            return self.last == Word::Stop;
        }
        matches!(state, SandboxState::Suspended | SandboxState::Suspending)
    }

    /// Whether it may be called READY: nothing in the queue will stop it.
    pub(crate) fn stays(&self) -> bool {
        self.stops == 0
    }

    /// Whether something in the queue will start it.
    pub(crate) fn will_start(&self) -> bool {
        self.starts > 0
    }
}

// === impl Slots ===

impl Slots {
    /// Forgets a sandbox.
    pub(crate) fn remove(&mut self, slot: &Slot) {
        if self.by_name.get(&slot.name).is_some_and(|known| known.uid == slot.uid) {
            self.by_name.remove(&slot.name);
        }
        if let Some(refusal) = slot.refusal() {
            self.refusals.push_back((slot.uid.clone(), refusal));
        }
        while self.refusals.len() > KEPT_REFUSALS {
            self.refusals.pop_front();
        }
    }

    /// Why a sandbox that is gone could not be made.
    pub(crate) fn refusal(&self, uid: &str) -> Option<Refusal> {
        let mut refusals = self.refusals.iter().rev();
        refusals.find(|(of, _)| of == uid).map(|(_, refusal)| refusal.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Command {
        Command::Start {
            begun: oneshot::channel().0,
        }
    }

    fn suspend() -> Command {
        Command::Suspend {
            incarnation: None,
            grace: Duration::ZERO,
            answer: oneshot::channel().0,
        }
    }

    #[test]
    fn the_last_word_wins() {
        use SandboxState::{Creating, Ready, Suspended};
        let mut news = News::default();
        assert!(!news.needs_start(Ready) && !news.needs_start(Creating) && news.needs_start(Suspended));
        news.queued(&suspend());
        assert!(news.needs_start(Ready) && !news.stays());
        news.queued(&start());
        assert!(!news.needs_start(Ready) && !news.needs_start(Suspended) && news.will_start());
        news.queued(&suspend());
        assert!(news.needs_start(Suspended));
        news.stop_done();
        news.start_done();
        assert!(news.needs_start(Ready));
        news.stop_done();
        assert!(!news.needs_start(Ready) && news.stays());
    }

    #[test]
    fn a_refusal_outlives_its_sandbox() {
        let mut slots = Slots::default();
        let name = Name::parse("name", "a").unwrap();
        let (slot, _inbox) = Slot::new(name, "1".to_owned(), String::new(), PathBuf::new());
        slot.set_refusal(Some(Refusal::invalid("x", "why")));
        slots.by_name.insert(slot.name.clone(), Arc::clone(&slot));
        slots.remove(&slot);
        assert!(slots.by_name.is_empty());
        assert_eq!(slots.refusal("1").unwrap().message, "why");
        assert_eq!(slots.refusal("2"), None);
    }
}
