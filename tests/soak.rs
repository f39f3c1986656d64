//! Clients do random things to fifty sandboxes while their server is killed and their connections are cut, and a model of
//! what must be true is held against every answer. In the end everything is back where it was.
//!
//! `SANDGATE_SOAK_SECONDS` says for how long, two minutes unless given. The seed is printed, and `SANDGATE_TEST_SEED`
//! replays it: every client does the same things in the same order, and the same trouble is made at the same times.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "soak/acts.rs"]
mod acts;
#[path = "soak/caller.rs"]
mod caller;
#[path = "soak/chaos.rs"]
mod chaos;
#[path = "soak/commons.rs"]
mod commons;
#[path = "soak/diary.rs"]
mod diary;
#[path = "soak/job.rs"]
mod job;
#[path = "soak/place.rs"]
mod place;
#[path = "soak/plan.rs"]
mod plan;
#[path = "soak/residue.rs"]
mod residue;
#[path = "soak/watcher.rs"]
mod watcher;

use std::{collections::BTreeMap, panic::resume_unwind, path::Path, pin::pin, sync::Arc, time::Duration};

use rand::{RngCore as _, SeedableRng as _, rngs::StdRng};
use sandgate::{Address, Client, Endpoint};
use sandgate_tests::{
    new_id,
    proxy::Proxy,
    seeded,
    server::{Server, ServerOptions},
};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{self, Instant},
};

use self::{
    acts::{Around, Facts, Hands},
    caller::Caller,
    chaos::Chaos,
    diary::Diary,
    job::Job,
    place::{Content, Place},
    plan::{Plan, Step, Wake},
    residue::{Inside, Residue},
    watcher::Watcher,
};

const CLIENTS: usize = 8;
const SECONDS: u64 = 120;
/// Beyond the soak itself: comparing, deleting, waiting for what is left. And for whoever looks at what failed.
const AFTERWARDS: Duration = Duration::from_secs(600);
/// Some sandboxes have a disk of their own, which is a loop device and a mount more.
const CONFIG: &str = "[template.disk]\ndisk = \"64MiB\"\n";
const TEMPLATES: [&str; 2] = ["default", "disk"];
const LOG: &str = "server.log";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_sandboxes_are_what_they_must_be_whatever_is_done() {
    let span = span();
    let soak = Soak::begin(span).await;
    time::timeout(span + AFTERWARDS, soak.run(span))
        .await
        .expect("it hangs");
}

fn span() -> Duration {
    let given = std::env::var("SANDGATE_SOAK_SECONDS").ok();
    let seconds = given.map(|seconds| seconds.parse().expect("SANDGATE_SOAK_SECONDS is a number"));
    Duration::from_secs(seconds.unwrap_or(SECONDS))
}

/// A soak.
struct Soak {
    rng: StdRng,
    server: Server,
    /// For the server's log and the sockets of proxies.
    dir: TempDir,
    around: Around,
    diary: Arc<Diary>,
}

// === impl Soak ===

impl Soak {
    async fn begin(span: Duration) -> Self {
        let (rng, dir) = (seeded(), tempfile::tempdir().unwrap());
        let server = Server::start_with(ServerOptions {
            config: CONFIG.to_owned(),
            log: Some(dir.path().join(LOG)),
            ..ServerOptions::default()
        })
        .await;
        let around = Around {
            mark: new_id("soak"),
            state_dir: server.state_dir(),
            ttl: span + AFTERWARDS,
        };
        Self {
            rng,
            server,
            dir,
            around,
            diary: Arc::new(Diary::new()),
        }
    }

    async fn run(mut self, span: Duration) {
        let rehearsed = self.rehearse().await;
        let before = Residue::take(&self.server, &self.around.mark);
        let callers = self.soak(span).await;
        self.compare(&callers, &rehearsed).await;
        drop(callers);
        self.clean_up(&before).await;
    }

    /// Does everything once, in peace, to a sandbox of each template, and counts what that has then.
    async fn rehearse(&self) -> BTreeMap<&'static str, Inside> {
        let client = self.server.client().await;
        let mut rehearsed = BTreeMap::new();
        for template in TEMPLATES {
            let (mut place, mut facts) = (Place::new(format!("rehearsal-{template}"), template), Facts::default());
            let mut act = async |step: Step| {
                self.diary.note("rehearsal", &format!("{step:?}"));
                let hands = Hands {
                    client: &client,
                    around: &self.around,
                    place: &place,
                    facts: &mut facts,
                };
                { hands }.act(&step).await;
                place.take(&step);
            };
            for step in everything() {
                act(step).await;
            }
            rehearsed.insert(template, Inside::of(&self.server, &format!("rehearsal-{template}")));
            act(Step::Delete { grace: None }).await;
        }
        drop(client);
        self.server.until_nothing_is_left().await;
        rehearsed
    }

    /// Lets clients and trouble loose.
    async fn soak(&mut self, span: Duration) -> Vec<Caller> {
        let socket = |number: usize| self.dir.path().join(number.to_string());
        let proxies: Vec<_> = (0..=CLIENTS)
            .map(|number| Proxy::start(socket(number), self.server.socket()))
            .collect();
        let until = Instant::now() + span;
        let (mut living, mut numbers) = (JoinSet::new(), BTreeMap::new());
        let watcher = Watcher::begin(connect(proxies[CLIENTS].socket()).await);
        for (number, proxy) in proxies[..CLIENTS].iter().enumerate() {
            let plan = Plan::new(number, StdRng::seed_from_u64(self.rng.next_u64()));
            let (around, diary) = (self.around.clone(), Arc::clone(&self.diary));
            let caller = Caller::new(number, plan, connect(proxy.socket()).await, around, diary);
            numbers.insert(living.spawn(caller.live(until)).id(), number);
        }
        let mut chaos = Chaos::new(StdRng::seed_from_u64(self.rng.next_u64()));
        let (diary, mut ended) = (Arc::clone(&self.diary), Vec::new());
        {
            let mut reign = pin!(chaos.reign(&mut self.server, &proxies, &diary, until));
            let mut reigns = true;
            while reigns || !living.is_empty() {
                tokio::select! {
                    () = &mut reign, if reigns => reigns = false,
                    Some(one) = living.join_next_with_id() => match one {
                        Ok((_, caller)) => ended.push(caller),
                        Err(error) => {
                            diary.tell(&[&caller::name(numbers[&error.id()]), chaos::NAME]);
                            resume_unwind(error.into_panic());
                        }
                    },
                }
            }
        }
        chaos.look_at(&self.server);
        watcher.until_it_knows(&self.server.client().await).await;
        let deeds: u32 = ended.iter().map(|caller| caller.deeds).sum();
        println!(
            "{deeds} deeds, {} kills, {} cuts; a server had at most {} KiB",
            chaos.kills,
            chaos.cuts,
            chaos.memory >> 10
        );
        ended
    }

    /// Sandboxes that are still there have no more than those of the rehearsal.
    async fn compare(&self, callers: &[Caller], rehearsed: &BTreeMap<&'static str, Inside>) {
        let (mut compared, mut memory) = (0, 0);
        for (name, template) in callers.iter().flat_map(Caller::ready) {
            memory = rehearsed[template]
                .until_like_this(&self.server, name)
                .await
                .max(memory);
            compared += 1;
            never_panicked(&self.server.sandbox_dir(name).join("log"));
        }
        println!(
            "{compared} sandboxes live on; a runtime has at most {} KiB",
            memory >> 10
        );
        assert!(compared > 0, "none is left to be looked at");
    }

    /// Deletes all, and waits until everything is as it was.
    async fn clean_up(&self, before: &Residue) {
        let client = self.server.client().await;
        for sandbox in client.list("").await.unwrap() {
            client.sandbox(sandbox.name).delete().await.unwrap();
        }
        drop(client);
        let after = before.until_back(&self.server, &self.around.mark).await;
        println!(
            "the server has {} KiB, at first it had {}; the test {}, at first {}",
            after.server.memory >> 10,
            before.server.memory >> 10,
            after.test.memory >> 10,
            before.test.memory >> 10
        );
        never_panicked(&self.dir.path().join(LOG));
    }
}

impl Drop for Soak {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.diary.tell(&[chaos::NAME, "rehearsal"]);
            let log = std::fs::read_to_string(self.dir.path().join(LOG)).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            println!(
                "the server's log ends:\n{}",
                lines[lines.len().saturating_sub(50)..].join("\n")
            );
        }
    }
}

async fn connect(socket: &Path) -> Client {
    Client::connect(Endpoint::new(Address::Unix(socket.to_owned())))
        .await
        .unwrap()
}

/// Everything that can be done to a sandbox but deleting it.
fn everything() -> Vec<Step> {
    let rng = &mut StdRng::seed_from_u64(1);
    let content = Content { seed: 1, length: 5000 };
    let (path, grace) = ("a", Duration::ZERO);
    let mut steps = vec![
        Step::Miss,
        Step::Create,
        Step::Find,
        Step::Upload { path, content },
        Step::ReadBack(path),
    ];
    steps.push(Step::Run(Job::short("r1".to_owned(), rng)));
    steps.extend((2..12).map(|number| Step::Stream(Job::long(format!("r{number}"), rng))));
    for (number, followed) in [(12, true), (13, false), (14, true)] {
        let job = Job::endless(format!("r{number}"), !followed);
        steps.push(Step::Start { job, followed });
    }
    steps.extend([Step::Kill(1), Step::Recall(0), Step::Label(1), Step::Audit]);
    steps.extend([Step::Suspend { grace }, Step::SuspendAgain, Step::Audit]);
    steps.push(Step::Refused(Job::short("r15".to_owned(), rng)));
    steps.push(Step::Stale(Job::short("r16".to_owned(), rng)));
    steps.push(Step::Resume(Wake::Run(Job::short("r17".to_owned(), rng))));
    steps.extend([Step::Remove(path), Step::Upload { path, content }, Step::Audit]);
    steps
}

fn never_panicked(log: &Path) {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let panicked: Vec<_> = text.lines().filter(|line| line.contains("panicked")).collect();
    assert!(panicked.is_empty(), "{}: {panicked:#?}", log.display());
}
