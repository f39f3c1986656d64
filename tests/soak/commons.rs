//! Sandboxes that all clients meddle with at once. What a call answers depends on who was first, so only bounds are held:
//! no command runs twice, what ran to its end said everything, nothing that is gone comes back, and whatever is refused
//! is refused for a reason that another client can have brought about.

use std::{collections::HashSet, time::Duration};

use sandgate::{
    Client, Error, Sandbox,
    v1::{self, ErrorReason, ExecState, SandboxState, exec_exit::Status},
};
use sandgate_tests::told::assert_same;

use crate::{
    acts::{Around, answered},
    job::{Job, RUNS},
    plan::Meddling,
};

/// Another client may have done this meanwhile.
const MEANWHILE: [ErrorReason; 3] = [
    ErrorReason::SandboxNotFound,
    ErrorReason::SandboxSuspended,
    ErrorReason::SandboxRestarted,
];

/// What one client has seen of a shared sandbox.
#[derive(Debug)]
pub(crate) struct Common {
    name: String,
    uids: History,
    incarnations: History,
}

/// Ids that replace each other: one that was replaced never comes back.
#[derive(Debug, Default)]
struct History {
    current: String,
    replaced: HashSet<String>,
}

// === impl Common ===

impl Common {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            uids: History::default(),
            incarnations: History::default(),
        }
    }

    pub(crate) async fn meddle(&mut self, client: &Client, around: &Around, meddling: &Meddling) {
        let sandbox = client.sandbox(&self.name);
        match meddling {
            Meddling::Create => {
                let created = client.create().name(&self.name).ttl(around.ttl).send().await;
                self.saw_ready(created.map(|created| created.info));
            }
            Meddling::Resume => self.saw_ready(sandbox.resume().await),
            Meddling::Run(job) => self.run(&sandbox, around, job).await,
            Meddling::Suspend => {
                if let Some(info) = unless_meddled(sandbox.suspend(Some(Duration::ZERO)).await) {
                    assert_eq!(info.state(), SandboxState::Suspended, "{info:?}");
                    self.saw(&info);
                }
            }
            Meddling::Delete => self.delete(&sandbox).await,
            Meddling::Look => {
                if let Some(info) = unless_meddled(sandbox.get().await) {
                    assert_ne!(info.state(), SandboxState::Failed, "{info:?}");
                    self.saw(&info);
                }
            }
            Meddling::Runs => nothing_ran_twice(&sandbox).await,
        }
    }

    fn saw_ready(&mut self, outcome: sandgate::Result<v1::Sandbox>) {
        if let Some(info) = unless_meddled(outcome) {
            assert_eq!(info.state(), SandboxState::Ready, "{info:?}");
            self.saw(&info);
        }
    }

    fn saw(&mut self, info: &v1::Sandbox) {
        self.uids.saw(&info.uid);
        if !info.incarnation.is_empty() {
            self.incarnations.saw(&info.incarnation);
        }
    }

    async fn run(&mut self, sandbox: &Sandbox, around: &Around, job: &Job) {
        let command = job.command(&around.mark);
        let Some(answer) = unless_meddled(sandbox.run(command.clone()).send().await) else {
            return;
        };
        let exec = answer.exec.clone().unwrap();
        assert_eq!(exec.state(), ExecState::Exited, "{exec:?}");
        match exec.exit.as_ref().and_then(|exit| exit.status) {
            // Suspended or deleted under it.
            Some(Status::Signal(9 | 15)) => {}
            _ => job.check_answer(&answer),
        }
        self.incarnations.saw(&exec.incarnation);
        let again = sandbox.clone().expecting(&exec.incarnation).start(command).await;
        if let Some(again) = unless_meddled(again) {
            assert_eq!(
                (again.started_at, again.pid),
                (exec.started_at, exec.pid),
                "{} was started again",
                job.id
            );
        }
    }

    /// The one that is seen, and no later one.
    async fn delete(&mut self, sandbox: &Sandbox) {
        let Some(info) = unless_meddled(sandbox.get().await) else {
            return;
        };
        self.saw(&info);
        let request = v1::DeleteRequest {
            sandbox: self.name.clone(),
            expected_uid: info.uid.clone(),
            grace: None,
        };
        let delete = || {
            let (mut raw, request) = (sandbox.client().raw(), request.clone());
            async move { Ok(raw.delete(request).await?.into_inner()) }
        };
        let deleted = answered(delete).await.unwrap();
        assert!(!deleted.existed || deleted.uid == info.uid, "{deleted:?}");
        self.uids.ended(&info.uid);
        if let Some(info) = unless_meddled(sandbox.get().await) {
            self.saw(&info);
        }
    }
}

// === impl History ===

impl History {
    fn saw(&mut self, id: &str) {
        assert!(!self.replaced.contains(id), "{id} came back");
        if self.current != id {
            self.replaced
                .insert(std::mem::replace(&mut self.current, id.to_owned()));
        }
    }

    fn ended(&mut self, id: &str) {
        self.saw(id);
        self.replaced.insert(id.to_owned());
    }
}

/// The answer, unless another client has meddled. Any other refusal is a fault.
fn unless_meddled<T>(outcome: sandgate::Result<T>) -> Option<T> {
    let error = match outcome {
        Ok(answer) => return Some(answer),
        Err(error) => error,
    };
    let expected = error.reason().is_some_and(|why| MEANWHILE.contains(&why));
    assert!(expected, "{error:?}");
    None
}

async fn nothing_ran_twice(sandbox: &Sandbox) {
    let runs = match answered(|| sandbox.download(RUNS)).await {
        Err(Error::File(missing)) if missing.reason() == ErrorReason::FileNotFound => return,
        outcome => outcome,
    };
    let Some(text) = unless_meddled(runs) else {
        return;
    };
    let text = String::from_utf8(text.to_vec()).unwrap();
    let ids: Vec<&str> = text.lines().collect();
    let once: HashSet<&str> = ids.iter().copied().collect();
    assert_eq!(once.len(), ids.len(), "a command ran twice: {ids:?}");
    assert_same(
        "the list's end",
        text.as_bytes().last_chunk::<1>().unwrap_or(b"\n"),
        b"\n",
    );
}
