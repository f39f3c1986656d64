//! What is done to clients and server meanwhile: the server killed, connections cut.

use std::time::Duration;

use rand::{Rng as _, rngs::StdRng};
use sandgate_tests::{
    procs::{own_memory, state},
    proxy::Proxy,
    server::Server,
};
use tokio::time::{self, Instant};

use crate::diary::Diary;

/// Between two kills, on average.
const KILL_EVERY: Duration = Duration::from_secs(20);
/// Between two cuts of any connection, at most.
const CUT_WITHIN: Duration = Duration::from_millis(300);
/// How long there is no server, at most. Mostly the next one is started at once.
const DOWN: Duration = Duration::from_secs(3);
/// How soon a server is killed that was just started, at most.
const SOON: Duration = Duration::from_millis(500);
/// Where something is badly wrong with a server of fifty sandboxes.
const MOST_MEMORY: u64 = 128 << 20;

pub(crate) const NAME: &str = "chaos";

/// Trouble.
#[derive(Debug)]
pub(crate) struct Chaos {
    rng: StdRng,
    pub(crate) kills: u32,
    pub(crate) cuts: usize,
    /// The most that a server had.
    pub(crate) memory: u64,
}

// === impl Chaos ===

impl Chaos {
    pub(crate) fn new(rng: StdRng) -> Self {
        Self {
            rng,
            kills: 0,
            cuts: 0,
            memory: 0,
        }
    }

    /// Makes trouble until then. The server runs when it is over, and was not killed in the last seconds.
    pub(crate) async fn reign(&mut self, server: &mut Server, proxies: &[Proxy], diary: &Diary, until: Instant) {
        let mut kill_at = Instant::now() + self.next_kill();
        loop {
            let cut_at = Instant::now() + CUT_WITHIN.mul_f64(self.rng.random_range(0.0..1.0));
            let victim = self.rng.random_range(0..proxies.len());
            if cut_at.min(kill_at) >= until {
                return time::sleep_until(until).await;
            }
            if kill_at <= cut_at {
                time::sleep_until(kill_at).await;
                self.kill(server, diary).await;
                kill_at = Instant::now() + self.next_kill();
            } else {
                time::sleep_until(cut_at).await;
                let cut = proxies[victim].cut();
                self.cuts += cut;
                diary.note(NAME, &format!("cuts {cut} connections of client {victim}"));
            }
        }
    }

    fn next_kill(&mut self) -> Duration {
        KILL_EVERY.mul_f64(self.rng.random_range(0.75..1.25))
    }

    /// Kills it, and now and then the next one too, while that finds out what there is.
    async fn kill(&mut self, server: &mut Server, diary: &Diary) {
        loop {
            self.look_at(server);
            let down = match self.rng.random_bool(0.3) {
                true => DOWN.mul_f64(self.rng.random_range(0.0..1.0)),
                false => Duration::ZERO,
            };
            diary.note(NAME, &format!("kills server {}, for {down:?}", server.pid()));
            server.kill();
            self.kills += 1;
            time::sleep(down).await;
            server.begin();
            diary.note(NAME, &format!("starts server {}", server.pid()));
            let again = SOON.mul_f64(self.rng.random_range(0.0..1.0));
            if self.rng.random_bool(0.6) {
                return;
            }
            time::sleep(again).await;
        }
    }

    /// It runs, and has not grown out of all bounds.
    pub(crate) fn look_at(&mut self, server: &Server) {
        let alive = state(server.pid().cast_signed());
        assert!(!matches!(alive, None | Some('Z')), "the server ended by itself");
        self.memory = self.memory.max(own_memory(server.pid()));
        assert!(self.memory <= MOST_MEMORY, "the server takes {} KiB", self.memory >> 10);
    }
}
