//! One client with its connection: does what its plan says, one thing after the other.

use std::{sync::Arc, time::Duration};

use sandgate::{Client, v1::SandboxState};
use sandgate_tests::in_time;
use tokio::time::{self, Instant};

use crate::{
    acts::{Around, Facts, Hands},
    commons::Common,
    diary::Diary,
    place::Life,
    plan::{COMMONS, Deed, OWN, Plan, Step},
};

/// Between two deeds, at most. Clients that never wait would measure how busy the machine is.
const PAUSE: Duration = Duration::from_millis(100);

/// A client.
pub(crate) struct Caller {
    name: String,
    client: Client,
    around: Around,
    plan: Plan,
    facts: Vec<Facts>,
    commons: Vec<Common>,
    diary: Arc<Diary>,
    pub(crate) deeds: u32,
}

// === impl Caller ===

impl Caller {
    pub(crate) fn new(number: usize, plan: Plan, client: Client, around: Around, diary: Arc<Diary>) -> Self {
        Self {
            name: name(number),
            client,
            around,
            plan,
            facts: (0..OWN).map(|_| Facts::default()).collect(),
            commons: (0..COMMONS).map(|index| Common::new(common(index))).collect(),
            diary,
            deeds: 0,
        }
    }

    /// Does one thing after the other until then, and at last compares everything and ends what runs.
    pub(crate) async fn live(mut self, until: Instant) -> Self {
        while Instant::now() < until {
            let deed = self.plan.draw();
            time::sleep(self.plan.pause(PAUSE)).await;
            self.carry_out(&deed).await;
            self.plan.take(&deed);
        }
        for index in 0..OWN {
            self.put_in_order(index).await;
        }
        self
    }

    async fn put_in_order(&mut self, index: usize) {
        let mut last = vec![Step::Audit];
        last.extend(self.plan.places[index].running.iter().map(|_| Step::Kill(0)));
        for step in last {
            let deed = Deed::Own(index, step);
            self.carry_out(&deed).await;
            self.plan.take(&deed);
        }
    }

    async fn carry_out(&mut self, deed: &Deed) {
        self.deeds += 1;
        self.diary.note(&self.name, &format!("{deed:?}"));
        match deed {
            Deed::Own(index, step) => in_time(self.hands(*index).act(step)).await,
            Deed::Common(index, meddling) => {
                in_time(self.commons[*index].meddle(&self.client, &self.around, meddling)).await;
            }
            Deed::List => in_time(self.list()).await,
        }
        self.diary.note(&self.name, "done");
    }

    fn hands(&mut self, index: usize) -> Hands<'_> {
        Hands {
            client: &self.client,
            around: &self.around,
            place: &self.plan.places[index],
            facts: &mut self.facts[index],
        }
    }

    /// Every name once; of its own those that must be there, as they must be.
    async fn list(&self) {
        let listed = self.client.list("").await.unwrap();
        let names: Vec<_> = listed.iter().map(|sandbox| sandbox.name.as_str()).collect();
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
        for place in &self.plan.places {
            let found = listed.iter().find(|sandbox| sandbox.name == place.name);
            let state = found.map(|sandbox| sandbox.state());
            let wanted = match place.life {
                Life::Absent => None,
                Life::Ready => Some(SandboxState::Ready),
                Life::Suspended => Some(SandboxState::Suspended),
            };
            assert_eq!(state, wanted, "{}: {found:?}", place.name);
        }
    }

    /// Names of its own sandboxes that are READY.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let ready = self.plan.places.iter().filter(|place| place.life == Life::Ready);
        ready.map(|place| (place.name.as_str(), place.template))
    }
}

/// By what the diary calls a client.
pub(crate) fn name(number: usize) -> String {
    format!("client {number}")
}

/// A shared sandbox.
fn common(index: usize) -> String {
    format!("common-{index}")
}
