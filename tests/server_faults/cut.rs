//! Connections cut, again and again, while clients stream.

use std::time::Duration;

use rand::Rng as _;
use sandgate_tests::{seeded, server::Server};
use tokio::time;

use super::{in_time, proxy::Proxy, work::Work};

const CUTS: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_byte_is_lost_and_no_command_runs_twice_when_connections_are_cut() {
    in_time(async {
        let mut rng = seeded();
        let server = Server::start().await;
        let proxy = Proxy::start(server.dir().join("proxy.sock"), server.socket());
        let work = Work::begin(&server, proxy.socket(), &mut rng).await;
        let mut cut = 0;
        for _ in 0..CUTS {
            time::sleep(Duration::from_millis(rng.random_range(0..400))).await;
            cut += proxy.cut();
        }
        println!("{cut} connections were cut");
        assert!(cut >= CUTS as usize, "there was little to cut");
        work.finish(&server).await;
    })
    .await;
}
