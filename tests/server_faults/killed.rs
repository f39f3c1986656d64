//! `kill -9` of the server, again and again, while clients stream.

use std::time::Duration;

use rand::Rng as _;
use sandgate_tests::{seeded, server::Server};
use tokio::time;

use super::{in_time, work::Work};

const KILLS: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_byte_is_lost_and_no_command_runs_twice_when_the_server_is_killed() {
    in_time(async {
        let mut rng = seeded();
        let mut server = Server::start().await;
        let work = Work::begin(&server, &server.socket(), &mut rng).await;
        for _ in 0..KILLS {
            // A server that was just started may be killed before it listens.
            time::sleep(Duration::from_millis(rng.random_range(0..600))).await;
            server.kill();
            server.begin();
        }
        server.restart().await;
        work.finish(&server).await;
    })
    .await;
}
