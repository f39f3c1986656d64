//! What Create through the server costs on a cluster, against a claim that is made and watched without it.
//!
//! `make bench-cluster` runs it in the network of a test cluster. Both take turns at the same warm pool. The connection to
//! what runs inside is part of Create; how long it took is in the answer, so the figure without it is there too.
#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that can't go on ends"
)]

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use kube::{
    api::{DeleteParams, DynamicObject, PostParams, WatchEvent, WatchParams},
    core::DynamicObject as Object,
};
use sandgate::v1::StartKind;
use sandgate_kubernetes_tests::{Mode, Space};
use sandgate_tests::conformance::new_name;
use serde_json::json;

const ROUNDS: usize = 40;
const POOL: u32 = 6;

/// What one Create took, and what of it was the first connection.
struct Took {
    all: Duration,
    connect: Duration,
}

#[tokio::main]
async fn main() {
    let space = Space::new().await;
    space.create_pool("pool", "plain", POOL).await;
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let (mut ours, mut without, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Each goes first as often as the other.
        for turn in [round % 2 == 0, round % 2 != 0] {
            space.until_full("pool", POOL).await;
            if turn {
                let took = create(&client).await;
                ours.push(took.all);
                without.push(took.all - took.connect);
            } else {
                bare.push(claim(&space).await);
            }
        }
    }
    println!("warm Create, against a bare claim and watch: {}", ratio(&ours, &bare));
    println!(
        "the same without the first connection to the runtime: {}",
        ratio(&without, &bare)
    );
    space.close().await;
}

async fn create(client: &sandgate::Client) -> Took {
    let begun = Instant::now();
    let created = client.create().name(new_name()).warm_pool("pool").send().await.unwrap();
    let all = begun.elapsed();
    let start = created.info.start.unwrap();
    assert_eq!(start.kind(), StartKind::Warm);
    let connect = start.steps.iter().find(|step| step.name == "connect").unwrap();
    let connect = connect.duration.unwrap().try_into().unwrap();
    created.sandbox.delete().await.unwrap();
    Took { all, connect }
}

/// What a user of the API would do by hand: make a claim, and watch it until it is ready.
async fn claim(space: &Space) -> Duration {
    let name = new_name();
    let claim: Object = serde_json::from_value(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {"name": name},
        "spec": {"warmPoolRef": {"name": "pool"}},
    }))
    .unwrap();
    let claims = space.claims();
    let begun = Instant::now();
    let made = claims.create(&PostParams::default(), &claim).await.unwrap();
    let version = made.metadata.resource_version.unwrap();
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = claims.watch(&only, &version).await.unwrap().boxed();
    while let Some(event) = events.next().await {
        if let WatchEvent::Modified(claim) = event.unwrap()
            && is_ready(&claim)
        {
            break;
        }
    }
    let took = begun.elapsed();
    claims.delete(&name, &DeleteParams::foreground()).await.unwrap();
    took
}

fn is_ready(claim: &DynamicObject) -> bool {
    let conditions = claim.data["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let ready = conditions
        .iter()
        .any(|each| each["type"] == "Ready" && each["status"] == "True");
    ready && claim.data["status"]["sandbox"]["name"].is_string()
}

/// The ratio of the medians, with the interval that 95 of 100 repetitions of the run would fall into (by resampling).
fn ratio(ours: &[Duration], limit: &[Duration]) -> String {
    let mut random = 1u64;
    let mut ratios: Vec<f64> = (0..2_000)
        .map(|_| {
            let mut pick = |of: &[Duration]| {
                let mut picked: Vec<Duration> = of
                    .iter()
                    .map(|_| {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        of[usize::try_from(random >> 33).unwrap() % of.len()]
                    })
                    .collect();
                median(&mut picked)
            };
            pick(ours) / pick(limit)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let all = median(&mut ours.to_vec()) / median(&mut limit.to_vec());
    format!(
        "{all:.2} [{:.2} to {:.2}], {:.0} ms to {:.0} ms, {ROUNDS} rounds",
        ratios[50],
        ratios[1_949],
        1_000.0 * median(&mut ours.to_vec()),
        1_000.0 * median(&mut limit.to_vec()),
    )
}

fn median(of: &mut [Duration]) -> f64 {
    of.sort();
    of[of.len() / 2].as_secs_f64()
}
