//! Sandboxes through faults: whatever is killed while one is made, stopped, brought back or deleted, it is wholly there
//! or wholly gone; what is damaged on disk harms nobody else; and every sandbox has its end, also without a server.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

#[path = "life_faults/damaged.rs"]
mod damaged;
#[path = "life_faults/ends.rs"]
mod ends;
#[path = "life_faults/killed.rs"]
mod killed;
#[path = "life_faults/whole.rs"]
mod whole;

use sandgate::Command;
use sandgate_tests::{conformance::sh, in_time, procs, server::Server};

/// A command that runs until it is killed, and can be found from outside.
fn endless(mark: &str) -> Command {
    Command::shell("exec sleep 100000").env("SANDGATE_TEST_MARK", mark)
}

/// Deletes all, and sees to it that nothing is left.
async fn delete_all(server: &Server, mark: &str) {
    let client = server.client().await;
    for sandbox in client.list("").await.unwrap() {
        client.sandbox(sandbox.name).delete().await.unwrap();
    }
    server.until_nothing_is_left().await;
    procs::until("processes of a sandbox are left", || procs::marked(mark).is_empty()).await;
}
