//! What the runtime costs, as ratios against what this machine can do.
//!
//! Machines are shared and noisy, so each figure is the ratio of two medians of interleaved measurements in one run, with
//! the middle half of the ratios beside it. Two limits are measured: *bare*, the work done by this process itself, and
//! *floor*, a tonic server with nothing else in it.
#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that can't go on ends"
)]

mod compare;
mod floor;
mod work;

use sandgate_tests::{Runtime, RuntimeOptions};

use crate::compare::compare;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    if let Some(socket) = std::env::args()
        .nth(1)
        .filter(|_| std::env::args().nth(2).as_deref() == Some("floor"))
    {
        return floor::serve(socket.as_ref()).await;
    }
    let floor = floor::Floor::start().await;
    let runtime = Runtime::start_with(RuntimeOptions {
        cgroups: true,
        ..Default::default()
    })
    .await;
    let (ours, theirs) = (runtime.connect().await, floor.connect().await);
    println!("each line: ours / the limit, median of the ratios [middle half]");
    compare(
        "Run of `sh -c true`, against a bare spawn",
        300,
        || work::run(ours.clone()),
        work::bare,
    )
    .await;
    compare(
        "Run of `sh -c true`, against the floor",
        300,
        || work::run(ours.clone()),
        || work::run(theirs.clone()),
    )
    .await;
    compare(
        "FileOps read of 4 KiB, against the floor",
        500,
        || work::read(ours.clone()),
        || work::read(theirs.clone()),
    )
    .await;
    compare(
        "stdout of 128 MiB, against the floor",
        8,
        || work::stdout(ours.clone()),
        || work::stdout(theirs.clone()),
    )
    .await;
    compare(
        "upload of 128 MiB, against the floor",
        8,
        || work::upload(ours.clone()),
        || work::upload(theirs.clone()),
    )
    .await;
    compare(
        "download of 128 MiB, against the floor",
        8,
        || work::download(ours.clone()),
        || work::download(theirs.clone()),
    )
    .await;
}
