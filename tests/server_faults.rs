//! Streams through faults: the server killed, connections cut, a runtime or a monitor killed, a server told to stop.
//! No byte is lost or doubled, no command runs twice, and nothing is left behind.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "tests")]

#[path = "server_faults/cut.rs"]
mod cut;
#[path = "server_faults/inside.rs"]
mod inside;
#[path = "server_faults/killed.rs"]
mod killed;
#[path = "server_faults/stopped.rs"]
mod stopped;
#[path = "server_faults/work.rs"]
mod work;

use std::path::Path;

use sandgate::{Address, Client, Command, Endpoint, Sandbox};
use sandgate_tests::{in_time, procs, proxy, server::Server, told};

/// A client with a connection of its own.
async fn connect(socket: &Path) -> Client {
    Client::connect(Endpoint::new(Address::Unix(socket.to_owned())))
        .await
        .unwrap()
}

/// Lines that commands appended to the sandbox's list of what was run, in order.
async fn runs(sandbox: &Sandbox) -> Vec<String> {
    let listed = sandbox.run(Command::shell("cat /workspace/runs")).send().await.unwrap();
    let stdout = listed.stdout.unwrap();
    assert_eq!(stdout.omitted_bytes, 0, "the list is too long for the answer");
    let text = String::from_utf8([stdout.head, stdout.tail].concat()).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Deletes all, and sees to it that nothing is left: no process that bears the mark, no group, mount, disk or directory.
async fn delete_all(server: &Server, mark: &str) {
    let client = server.client().await;
    for sandbox in client.list("").await.unwrap() {
        client.sandbox(sandbox.name).delete().await.unwrap();
    }
    server.until_nothing_is_left().await;
    procs::until("processes of a sandbox are left", || procs::marked(mark).is_empty()).await;
    let ours = server.dir().display().to_string();
    procs::until("loop devices of a sandbox are left", || loop_devices(&ours).is_empty()).await;
}

/// Files beneath a directory that a loop device holds.
fn loop_devices(dir: &str) -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = devices.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| file.contains(dir)).collect()
}
