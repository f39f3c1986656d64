//! What breaks on the way to a sandbox, or beside it, is a pause: streams go on where they were.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use rand::Rng as _;
use sandgate::{Address, Client, Endpoint};
use sandgate_kubernetes_tests::{Mode, Space};
use sandgate_tests::{conformance::new_name, seeded, server::Server};
use tempfile::TempDir;
use tokio::time;

use super::{alone, components::Stopped, proxy::Proxy, streams::Streams};

const KILLS: usize = 4;
const CUTS: usize = 10;
/// How long the controller is away.
const AWAY: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_servers_is_killed() {
    alone(async {
        let space = Space::new().await;
        let mut servers = [space.server(Mode::InCluster).await, space.server(Mode::InCluster).await];
        let directory = TempDir::new().unwrap();
        // What a load balancer does: the address stays, and leads to one that lives.
        let address = directory.path().join("address");
        lead(&address, &servers[0]);
        let connect = async || {
            let endpoint = Endpoint::new(Address::Unix(address.clone()));
            Client::connect(endpoint).await.unwrap()
        };
        let made = connect().await.create().name(new_name()).send().await.unwrap();
        let streams = Streams::begin(&made.sandbox, &mut seeded(), connect).await;
        for kill in 0..KILLS {
            let (killed, other) = (kill % 2, (kill + 1) % 2);
            servers[killed].kill();
            lead(&address, &servers[other]);
            streams.until_all_go_on().await;
            servers[killed].restart().await;
        }
        finish(space, streams, &made.info.incarnation).await;
    })
    .await;
}

/// Has an address lead to a server.
fn lead(address: &Path, server: &Server) {
    let new = address.with_extension("new");
    symlink(server.socket(), &new).unwrap();
    fs::rename(new, address).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_router_is_killed_behind_a_gateway() {
    alone(router_killed(Mode::Gateway)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_router_is_killed_at_its_url() {
    alone(router_killed(Mode::Direct)).await;
}

async fn router_killed(mode: Mode) {
    let (space, server, streams, incarnation) = eight(mode).await;
    for _ in 0..2 {
        let router = Stopped::by("KILL", "router", &space.cluster).await;
        router.start().await;
        streams.until_all_go_on().await;
    }
    finish(space, streams, &incarnation).await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_are_cut() {
    alone(async {
        let mut rng = seeded();
        let mut space = Space::new().await;
        let directory = TempDir::new().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let proxy = Proxy::start(&space.cluster.kubeconfig, &kubeconfig).await;
        space.cluster.kubeconfig = kubeconfig;
        let server = space.server(Mode::Tunnel).await;
        let made = server.client().await.create().name(new_name()).send().await.unwrap();
        let streams = Streams::begin(&made.sandbox, &mut rng, async || server.client().await).await;
        let mut cut = 0;
        for round in 0..CUTS {
            time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
            cut += proxy.cut();
            // Some meet what is not whole again.
            if round % 2 == 0 {
                streams.until_all_go_on().await;
            }
        }
        println!("{cut} connections were cut at {proxy}");
        assert!(cut >= CUTS, "there was little to cut");
        streams.until_all_go_on().await;
        finish(space, streams, &made.info.incarnation).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_is_restarted_under_tunnels() {
    alone(async {
        let (space, server, streams, incarnation) = eight(Mode::Tunnel).await;
        for signal in ["TERM", "KILL"] {
            let down = Stopped::by(signal, "apiserver", &space.cluster).await;
            down.start().await;
            streams.until_all_go_on().await;
        }
        finish(space, streams, &incarnation).await;
        drop(server);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_server_is_restarted_and_pods_are_reached_meanwhile() {
    alone(async {
        let (space, mut server, streams, incarnation) = eight(Mode::InCluster).await;
        let down = Stopped::by("KILL", "apiserver", &space.cluster).await;
        streams.until_all_go_on().await;
        down.start().await;
        streams.until_all_go_on().await;
        // What a server saw before is not all that it knows.
        server.kill();
        server.restart().await;
        streams.until_all_go_on().await;
        finish(space, streams, &incarnation).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controller_is_away_for_a_while() {
    alone(async {
        let (space, server, streams, incarnation) = eight(Mode::InCluster).await;
        let client = server.client().await;
        let down = Stopped::by("KILL", "controller", &space.cluster).await;
        let began = time::Instant::now();
        let name = new_name();
        let later = client.create().name(&name).template("plain").no_wait().send();
        let later = later.await.unwrap();
        while began.elapsed() < AWAY {
            streams.until_all_go_on().await;
        }
        down.start().await;
        streams.until_all_go_on().await;
        // What was asked for meanwhile comes.
        let made = client.create().name(&name).template("plain").send().await.unwrap();
        assert_eq!((made.created, &made.info.uid), (false, &later.info.uid));
        made.sandbox.delete().await.unwrap();
        finish(space, streams, &incarnation).await;
    })
    .await;
}

/// Eight streams through a server.
async fn eight(mode: Mode) -> (Space, Server, Streams, String) {
    let space = Space::new().await;
    let server = space.server(mode).await;
    let made = server.client().await.create().name(new_name()).send().await.unwrap();
    let streams = Streams::begin(&made.sandbox, &mut seeded(), async || server.client().await).await;
    (space, server, streams, made.info.incarnation)
}

/// All bytes came once, all commands ran once, it is the same incarnation, and nothing is left.
async fn finish(space: Space, streams: Streams, incarnation: &str) {
    let sandbox = streams.sandbox.clone();
    streams.finish().await;
    assert_eq!(sandbox.get().await.unwrap().incarnation, incarnation);
    sandbox.delete().await.unwrap();
    space.close().await;
}
