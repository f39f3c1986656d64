//! Wholly there, or wholly gone: looked at from outside, after a fault.

use std::{fs, time::Duration};

use sandgate::{
    Client, Command, Sandbox,
    v1::{self, ErrorReason, SandboxState},
};
use sandgate_tests::{procs, server::Server};

use super::{endless, sh};

/// A sandbox that faults are done to.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) sandbox: Sandbox,
    /// Borne by the process that runs in it.
    mark: String,
}

/// What a fault made of a sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    There,
    Gone,
}

// === impl Subject ===

impl Subject {
    /// One that is not there yet.
    pub(crate) fn new(client: &Client, name: String, mark: &str) -> Self {
        Self {
            sandbox: client.sandbox(&name),
            mark: format!("{mark}-{name}"),
            name,
        }
    }

    /// Makes it, with a file and a process in it.
    pub(crate) async fn make(&self) {
        self.sandbox.client().create().name(&self.name).send().await.unwrap();
        sh(&self.sandbox, "echo kept > /workspace/file").await;
        self.start().await;
    }

    async fn start(&self) {
        self.sandbox.start(endless(&self.mark)).await.unwrap();
        procs::until("the process does not run", || procs::marked(&self.mark).len() == 1).await;
    }

    /// Waits until the server knows that a monitor was killed, as a caller would find out: what was begun in an
    /// incarnation that has ended is refused, and can be begun again.
    pub(crate) async fn notice(&self) {
        for _ in 0..3 {
            let attached = self.sandbox.attach().await;
            let reason = match attached {
                Ok(_) => self.sandbox.run(Command::shell("true")).send().await.map(drop),
                Err(error) => Err(error),
            };
            match reason.map_err(|error| error.reason()) {
                Ok(()) | Err(Some(ErrorReason::SandboxNotFound)) => return,
                Err(Some(ErrorReason::SandboxRestarted | ErrorReason::SandboxSuspended)) => {}
                Err(other) => panic!("{}: {other:?}", self.name),
            }
        }
        panic!("{} ends again and again", self.name);
    }

    /// Sees to it that it is in one piece, or that nothing is left of it. Then uses its name.
    pub(crate) async fn check(&self, server: &Server, had_file: bool) -> Fate {
        let fate = match self.settled().await {
            None => {
                self.check_gone(server).await;
                Fate::Gone
            }
            Some(now) => {
                self.check_there(&now, had_file).await;
                Fate::There
            }
        };
        assert_eq!(self.check_name().await, fate == Fate::Gone, "{}", self.name);
        fate
    }

    /// Uses its name, whatever became of it, and tells whether that made a new one.
    pub(crate) async fn check_name(&self) -> bool {
        let again = self.sandbox.client().create().name(&self.name).send().await.unwrap();
        assert_eq!(again.info.state(), SandboxState::Ready);
        assert_eq!(sh(&self.sandbox, "echo again").await, "again\n");
        again.created
    }

    /// Waits until it is nothing in between.
    async fn settled(&self) -> Option<v1::Sandbox> {
        loop {
            match self.sandbox.get().await {
                Ok(now) => match now.state() {
                    SandboxState::Ready | SandboxState::Suspended => return Some(now),
                    SandboxState::Creating
                    | SandboxState::Resuming
                    | SandboxState::Suspending
                    | SandboxState::Deleting => {}
                    other => panic!("{}: {other:?}: {}", self.name, now.state_message),
                },
                Err(error) if error.reason() == Some(ErrorReason::SandboxNotFound) => return None,
                Err(error) => panic!("{}: {error:?}", self.name),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn check_there(&self, now: &v1::Sandbox, had_file: bool) {
        // What is said to run does, and what is not does not.
        if now.state() == SandboxState::Suspended {
            assert_eq!(now.incarnation, "");
            procs::until("a suspended sandbox has processes", || {
                procs::marked(&self.mark).is_empty()
            })
            .await;
        }
        let back = self.sandbox.attach().await.unwrap();
        assert_eq!(back.state(), SandboxState::Ready, "{}", self.name);
        if now.state() == SandboxState::Ready {
            assert_eq!(back.incarnation, now.incarnation, "{}", self.name);
        }
        if had_file {
            assert_eq!(
                sh(&self.sandbox, "cat /workspace/file").await,
                "kept\n",
                "{}",
                self.name
            );
        } else {
            sh(&self.sandbox, "test -d /workspace").await;
        }
    }

    async fn check_gone(&self, server: &Server) {
        let what = format!("something is left of {}", self.name);
        procs::until(&what, || {
            procs::marked(&self.mark).is_empty() && !is_on_disk(server, &self.name)
        })
        .await;
    }
}

/// Whether any directory is a sandbox's of that name, wherever it is.
fn is_on_disk(server: &Server, name: &str) -> bool {
    let named = format!("\"name\":\"{name}\"");
    ["sandboxes", "new", "trash", "damaged"].iter().any(|place| {
        let dirs = fs::read_dir(server.state_dir().join(place)).unwrap().flatten();
        dirs.into_iter().any(|dir| {
            let record = fs::read_to_string(dir.path().join("sandbox.json")).unwrap_or_default();
            dir.file_name() == name || record.replace(' ', "").contains(&named)
        })
    })
}
