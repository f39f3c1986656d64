//! What clients do, drawn from a seed: each client's deeds follow from its own seed and what it did before, and from
//! nothing that depends on time. So the same seed does the same things in the same order, however far it gets.

use std::time::Duration;

use rand::{Rng as _, RngCore as _, rngs::StdRng, seq::IndexedRandom as _};

use crate::{
    job::Job,
    place::{Content, Life, Place},
};

/// Sandboxes of one client's own.
pub(crate) const OWN: usize = 6;
/// Sandboxes that all clients meddle with.
pub(crate) const COMMONS: usize = 2;
/// Endless commands in one sandbox.
const MOST_RUNNING: usize = 2;
const PATHS: [&str; 5] = ["a", "b", "long name, with blanks", "dir/c", "dir/deep/d"];
/// The templates of a client's sandboxes: one in so many has a disk of its own.
const WITH_DISK: usize = OWN;

/// What a client does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// To a sandbox of its own.
    Own(usize, Step),
    /// To one that it shares with the others.
    Common(usize, Meddling),
    /// Looks at all there are.
    List,
}

/// Something done to a sandbox that nobody else touches: what comes of it is known exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    /// Create of one that is there.
    Find,
    /// Calls for one that is not there.
    Miss,
    Run(Job),
    /// Runs it and follows it, to its end.
    Stream(Job),
    /// Starts what does not end by itself.
    Start {
        job: Job,
        followed: bool,
    },
    /// Kills the running one of that index.
    Kill(usize),
    /// Asks again for the past one of that index.
    Recall(usize),
    Upload {
        path: &'static str,
        content: Content,
    },
    ReadBack(&'static str),
    Remove(&'static str),
    Label(u32),
    Suspend {
        grace: Duration,
    },
    SuspendAgain,
    Resume(Wake),
    /// Runs something in a suspended one.
    Refused(Job),
    /// Runs something in an incarnation that has ended.
    Stale(Job),
    Delete {
        grace: Option<Duration>,
    },
    /// Compares everything.
    Audit,
}

/// What brings a suspended sandbox back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Resume,
    Attach,
    Create,
    /// With `auto_resume`.
    Run(Job),
}

/// Something done to a sandbox that others meddle with too: anything may come of it, within bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meddling {
    Create,
    Run(Job),
    Suspend,
    Resume,
    Delete,
    Look,
    /// Reads what was run.
    Runs,
}

/// What one client does.
#[derive(Debug)]
pub(crate) struct Plan {
    rng: StdRng,
    client: usize,
    drawn: u32,
    pub(crate) places: Vec<Place>,
}

// === impl Plan ===

impl Plan {
    pub(crate) fn new(client: usize, rng: StdRng) -> Self {
        let place = |number| {
            let template = if number % WITH_DISK == 0 { "disk" } else { "default" };
            Place::new(format!("own-{client}-{number}"), template)
        };
        Self {
            rng,
            client,
            drawn: 0,
            places: (0..OWN).map(place).collect(),
        }
    }

    /// The next deed. It is taken as done when the one after it is drawn.
    pub(crate) fn draw(&mut self) -> Deed {
        self.drawn += 1;
        match self.rng.random_range(0..100) {
            0..3 => Deed::List,
            3..15 => Deed::Common(self.rng.random_range(0..COMMONS), self.meddle()),
            _ => {
                let index = self.rng.random_range(0..OWN);
                Deed::Own(index, self.step(index))
            }
        }
    }

    /// How long to wait before it.
    pub(crate) fn pause(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.rng.random_range(0.0..1.0))
    }

    pub(crate) fn take(&mut self, deed: &Deed) {
        if let Deed::Own(index, step) = deed {
            self.places[*index].take(step);
        }
    }

    /// An id that no other command has, in any sandbox.
    fn id(&self) -> String {
        format!("c{}-{}", self.client, self.drawn)
    }

    fn meddle(&mut self) -> Meddling {
        let kinds = [
            (25, Meddling::Create),
            (40, Meddling::Run(Job::short(self.id(), &mut self.rng))),
            (8, Meddling::Suspend),
            (8, Meddling::Resume),
            (4, Meddling::Delete),
            (10, Meddling::Look),
            (5, Meddling::Runs),
        ];
        chosen(&mut self.rng, &kinds)
    }

    fn step(&mut self, index: usize) -> Step {
        match self.places[index].life {
            Life::Absent => chosen(&mut self.rng, &[(9, Step::Create), (1, Step::Miss)]),
            Life::Ready => self.step_when_ready(index),
            Life::Suspended => self.step_when_suspended(index),
        }
    }

    fn step_when_ready(&mut self, index: usize) -> Step {
        let (id, place, rng) = (self.id(), &self.places[index], &mut self.rng);
        let if_so = |so: bool, weight: u32| if so { weight } else { 0 };
        let file = place.files.keys().nth(below(rng, place.files.len()));
        let (running, past) = (place.running.len(), place.past.len());
        let (followed, stubborn) = (rng.random_bool(0.5), rng.random_bool(0.3));
        // All are drawn, whichever is taken: what comes later does not depend on it.
        let kinds = [
            (18, Step::Run(Job::short(id.clone(), rng))),
            (14, Step::Stream(Job::long(id.clone(), rng))),
            (
                if_so(running < MOST_RUNNING, 8),
                Step::Start {
                    job: Job::endless(id.clone(), stubborn),
                    followed,
                },
            ),
            (if_so(running > 0, 10), Step::Kill(below(rng, running))),
            (if_so(past > 0, 6), Step::Recall(below(rng, past))),
            (12, upload(rng)),
            (
                if_so(file.is_some(), 6),
                Step::ReadBack(file.copied().unwrap_or_default()),
            ),
            (
                if_so(file.is_some(), 4),
                Step::Remove(file.copied().unwrap_or_default()),
            ),
            (2, Step::Label(rng.random())),
            (2, Step::Find),
            (if_so(place.ended > 0, 2), Step::Stale(Job::short(id, rng))),
            (6, Step::Suspend { grace: grace(rng) }),
            (
                4,
                Step::Delete {
                    grace: rng.random_bool(0.3).then(|| grace(rng)),
                },
            ),
            (4, Step::Audit),
        ];
        chosen(rng, &kinds)
    }

    fn step_when_suspended(&mut self, index: usize) -> Step {
        let (id, place, rng) = (self.id(), &self.places[index], &mut self.rng);
        let stale = if place.ended > 0 { 2 } else { 0 };
        let kinds = [
            (5, Step::Resume(Wake::Resume)),
            (3, Step::Resume(Wake::Attach)),
            (2, Step::Resume(Wake::Create)),
            (4, Step::Resume(Wake::Run(Job::short(id.clone(), rng)))),
            (3, Step::Refused(Job::short(id.clone(), rng))),
            (stale, Step::Stale(Job::short(id, rng))),
            (1, Step::SuspendAgain),
            (1, Step::Label(rng.random())),
            (2, Step::Delete { grace: None }),
            (1, Step::Audit),
        ];
        chosen(rng, &kinds)
    }
}

fn chosen<T: Clone>(rng: &mut StdRng, kinds: &[(u32, T)]) -> T {
    let chosen = kinds.choose_weighted(rng, |(weight, _)| *weight);
    chosen.unwrap().1.clone()
}

/// A number below that one; 0 if there is none.
fn below(rng: &mut StdRng, end: usize) -> usize {
    rng.random_range(0..end.max(1))
}

fn upload(rng: &mut StdRng) -> Step {
    let most = if rng.random_bool(0.1) { 600_000 } else { 20_000 };
    let content = Content {
        seed: rng.next_u64(),
        length: rng.random_range(0..most),
    };
    let path = PATHS[rng.random_range(0..PATHS.len())];
    Step::Upload { path, content }
}

fn grace(rng: &mut StdRng) -> Duration {
    let graces = [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(2)];
    graces[rng.random_range(0..graces.len())]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng as _;

    use super::*;

    fn deeds(seed: u64, count: usize) -> Vec<Deed> {
        let mut plan = Plan::new(0, StdRng::seed_from_u64(seed));
        let mut draw = || {
            let deed = plan.draw();
            plan.take(&deed);
            deed
        };
        (0..count).map(|_| draw()).collect()
    }

    #[test]
    fn a_seed_is_replayed() {
        assert_eq!(deeds(1, 2000), deeds(1, 2000));
        assert_ne!(deeds(1, 50), deeds(2, 50));
    }

    #[test]
    fn everything_is_done_in_the_time_of_a_short_soak() {
        // What `{:?}` says before the first field.
        let kind = |text: String| text.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
        let kinds: BTreeSet<String> = deeds(3, 1000)
            .into_iter()
            .map(|deed| match deed {
                Deed::Own(_, step) => kind(format!("{step:?}")),
                Deed::Common(_, meddling) => format!("common {}", kind(format!("{meddling:?}"))),
                Deed::List => "List".to_owned(),
            })
            .collect();
        let steps = "Audit Create Delete Find Kill Label Miss ReadBack Recall Refused Remove Resume Run Stale Start \
                     Stream Suspend SuspendAgain Upload";
        let commons = ["Create", "Delete", "Look", "Resume", "Run", "Runs", "Suspend"];
        let wanted = steps.split_whitespace().map(str::to_owned).chain(["List".to_owned()]);
        let wanted = wanted.chain(commons.map(|kind| format!("common {kind}")));
        assert_eq!(kinds, wanted.collect());
    }
}
