//! What every provider of sandboxes promises, seen from outside: the promises on the `Provider` trait, as cases.
//!
//! A provider's own test file makes a [`World`] and runs each case in it. Names are made up by each case, so that cases can
//! share one world. What runs in a sandbox may be less than our runtime: then a case wants what `Sandbox.capabilities` says.

mod life;
mod memory;
mod races;
mod watch;
mod work;

use std::time::Duration;

use sandgate::{Client, Command, Created, Sandbox, v1};
use sandgate_proto::v1::{ErrorReason, exec_exit::Status};

pub use self::{life::*, memory::*, races::*, watch::*, work::*};

/// Where a provider makes its sandboxes.
#[expect(async_fn_in_trait, reason = "only used here, by tests on one thread at a time")]
pub trait World {
    /// A client of the server, or of any replica.
    async fn client(&self) -> Client;

    /// Kills the server and starts another one in its place.
    async fn replace_server(&mut self);

    /// A template that is not the default one.
    fn other_template(&self) -> &str;

    /// How often calls are made to cross each other.
    fn rounds(&self) -> usize {
        20
    }

    /// How long a sandbox may take from being asked for to its first command.
    fn beat(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// How long something may take that has no end of its own.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other sandbox has.
#[must_use]
pub fn new_name() -> String {
    crate::new_id("c").chars().take(20).collect()
}

/// How well what runs in a sandbox can do something. `None`: not at all.
#[must_use]
pub fn level(sandbox: &v1::Sandbox, name: &str) -> Option<v1::CapabilityLevel> {
    let found = sandbox.capabilities.iter().find(|capability| capability.name == name);
    found.map(v1::Capability::level)
}

/// The call must have been refused because what runs in the sandbox lacks that.
pub fn must_lack<T: std::fmt::Debug>(outcome: sandgate::Result<T>, name: &str) {
    let error = outcome.unwrap_err();
    let refused = error
        .refused()
        .unwrap_or_else(|| panic!("{name}: no reason in {error:?}"));
    assert_eq!(
        refused.reason,
        Some(ErrorReason::CapabilityMissing),
        "{name}: {refused:?}"
    );
    assert_eq!(refused.code, tonic::Code::Unimplemented, "{name}: {refused:?}");
    assert_eq!(refused.metadata["capability"], name, "{refused:?}");
}

async fn create(client: &Client) -> Created {
    let created = client
        .create()
        .name(new_name())
        .max_wait(3 * PATIENCE)
        .send()
        .await
        .unwrap();
    assert!(created.created);
    assert_eq!(created.info.state(), v1::SandboxState::Ready);
    created
}

/// Runs a script, which must do well, and gives what it printed.
pub async fn sh(sandbox: &Sandbox, script: &str) -> String {
    let done = sandbox.run(Command::shell(script)).send().await.unwrap();
    let exit = done.exec.unwrap().exit.unwrap();
    let stderr = done.stderr.unwrap_or_default().head;
    let status = exit.status.unwrap();
    assert_eq!(
        status,
        Status::Code(0),
        "{script}: {}",
        String::from_utf8_lossy(&stderr)
    );
    String::from_utf8(done.stdout.unwrap().head.to_vec()).unwrap()
}

fn refused<T: std::fmt::Debug>(outcome: sandgate::Result<T>) -> ErrorReason {
    let error = outcome.unwrap_err();
    let refused = error.refused().unwrap_or_else(|| panic!("no reason in {error:?}"));
    assert!(
        refused.request_id.as_ref().is_some_and(|id| !id.is_empty()),
        "{refused:?}"
    );
    error.reason().unwrap_or_else(|| panic!("no reason in {error:?}"))
}
