//! What runs in a sandbox does not get out of it: every attempt is made inside of a real one and is refused, as an
//! ordinary user inside, as root inside, and where the server itself is nobody; or `Sandbox.isolation` says what is lacking.
//!
//! Attempts are bounded, end by themselves and speak to the loopback only. Outside of a sandbox only those are made that
//! do no harm: they must succeed there, or their failing inside would show nothing.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "escape/bombs.rs"]
mod bombs;
#[path = "escape/host.rs"]
mod host;
#[path = "escape/outside.rs"]
mod outside;
#[path = "escape/paths.rs"]
mod paths;
#[path = "escape/probes.rs"]
mod probes;
#[path = "escape/resumed.rs"]
mod resumed;
#[path = "escape/rootfs.rs"]
mod rootfs;

use std::{future::Future, time::Duration};

use sandgate::{Client, Command, Sandbox, v1};
use sandgate_tests::server::{Server, ServerOptions};

/// An ordinary user of the host.
const NOBODY: u32 = 65534;
/// Nothing here takes this long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(170);

/// The built-in template; the same as root inside; and small ones to fill.
const TEMPLATES: &str = r#"
[template.root]
user = "root"

[template.deep]
workdir = "/workspace/deep"

[template.small]
memory = "128MiB"
pids = 96

[template.tiny]
memory = "48MiB"

[template.small-disk]
disk = "64MiB"
"#;

async fn server(uid: Option<u32>) -> Server {
    assert!(
        rustix::process::getuid().is_root(),
        "these tests need root, as the server does for all of its isolation"
    );
    Server::start_with(ServerOptions {
        config: TEMPLATES.to_owned(),
        uid,
        tcp: true,
        ..ServerOptions::default()
    })
    .await
}

async fn make(client: &Client, template: &str, name: &str) -> Sandbox {
    client
        .create()
        .name(name)
        .template(template)
        .send()
        .await
        .unwrap()
        .sandbox
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it hangs")
}

fn python(script: &str) -> Command {
    Command::new(["/usr/bin/python3", "-I", "-S", "-c", script])
}

/// Runs a command to its end and gives what it wrote to stdout.
async fn said(sandbox: &Sandbox, command: Command) -> String {
    let answer = run(sandbox, command).await;
    let (out, err) = (text(answer.stdout), text(answer.stderr));
    let exit = answer.exec.and_then(|exec| exec.exit).and_then(|exit| exit.status);
    assert_eq!(exit, Some(v1::exec_exit::Status::Code(0)), "{out}{err}");
    out
}

async fn run(sandbox: &Sandbox, command: Command) -> v1::RunResponse {
    sandbox.run(command).budget(1 << 20, 0).send().await.unwrap()
}

fn text(output: Option<v1::BudgetedOutput>) -> String {
    let output = output.unwrap_or_default();
    String::from_utf8_lossy(&output.head).into_owned() + &String::from_utf8_lossy(&output.tail)
}

/// Why a mechanism is not in force; nothing if it is.
fn lacking(sandbox: &v1::Sandbox, mechanism: &str) -> Option<String> {
    let found = sandbox.isolation.iter().find(|each| each.mechanism == mechanism);
    let found = found.unwrap_or_else(|| panic!("nothing is said of {mechanism}"));
    assert_ne!(found.in_force, !found.why_not.is_empty(), "{found:?}");
    (!found.in_force).then(|| found.why_not.clone())
}

async fn works(sandbox: &Sandbox) {
    assert_eq!(said(sandbox, Command::shell("echo alive")).await, "alive\n");
}
