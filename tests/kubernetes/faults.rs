//! Faults around sandboxes and in them, while commands are followed. What breaks on the way to a sandbox is a pause; what
//! ends its pod ends its streams, which say why, and nothing runs again in what takes its place.
//!
//! Components of the cluster are stopped here, so these tests run one after the other and want a cluster of
//! `scripts/cluster`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests"
)]

#[path = "faults/components.rs"]
mod components;
#[path = "faults/ends.rs"]
mod ends;
#[path = "faults/pauses.rs"]
mod pauses;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "faults/scene.rs"]
mod scene;
#[path = "faults/streams.rs"]
mod streams;

use std::time::Duration;

use sandgate_tests::told;
use tokio::{sync::Mutex, time};

/// For a test that hangs: more than all of its patience.
const LONGEST: Duration = Duration::from_secs(400);

/// Runs a test when no other does.
async fn alone(test: impl Future<Output = ()>) {
    static ONE: Mutex<()> = Mutex::const_new(());
    let _guard = ONE.lock().await;
    time::timeout(LONGEST, test)
        .await
        .unwrap_or_else(|_| panic!("it hangs"));
}
