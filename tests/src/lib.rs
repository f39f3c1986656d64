//! What the tests share: the real runtime as a process of its own, and the ways to talk to it.
//!
//! Tests need the static runtime (`make test` builds it and says where it is) and root. What is missing fails loudly.
#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test that can't go on fails"
)]

mod cgroup;
pub mod conformance;
mod exec;
pub mod files;
mod follow;
mod next_door;
pub mod procs;
pub mod proxy;
mod runtime;
pub mod server;
mod spec;
pub mod told;

pub use self::{
    cgroup::TestCgroup,
    exec::{follow, get, random_bytes, start, stop_with_grace, target, until},
    follow::{Output, collect, next_event},
    next_door::link_to,
    runtime::{Client, Runtime, RuntimeOptions, binary, connect_to},
    spec::{argv, run_request, shell, start_request},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;

/// A random generator whose seed is printed; `SANDGATE_TEST_SEED` replays it.
#[must_use]
pub fn seeded() -> StdRng {
    let given = std::env::var("SANDGATE_TEST_SEED")
        .ok()
        .map(|seed| seed.parse().expect("SANDGATE_TEST_SEED is a number"));
    let seed = given.unwrap_or_else(|| rand::rng().random());
    println!("SANDGATE_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// The reason that a refused call carries.
#[must_use]
pub fn reason(status: &tonic::Status) -> ErrorReason {
    let refusal = Refusal::from_status(status);
    refusal.unwrap_or_else(|| panic!("no reason in {status:?}")).reason
}

/// Fails what hangs: no test of faults takes this long.
pub async fn in_time<T>(work: impl Future<Output = T>) -> T {
    let patience = std::time::Duration::from_secs(150);
    tokio::time::timeout(patience, work)
        .await
        .unwrap_or_else(|_| panic!("it hangs"))
}

/// An id that no other exec of the test has.
#[must_use]
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}-{:016x}", rand::rng().random::<u64>())
}
