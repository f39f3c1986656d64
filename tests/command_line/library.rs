//! What the command line does not use of the client library, against the real server.

use std::{collections::HashMap, time::Duration};

use sandgate::{
    Command, Error, Event, Outcome, Sandbox,
    v1::{ErrorReason, ExecState, SandboxSettings, SandboxState, exec_exit::Status},
};
use sandgate_tests::server::Server;

use super::stage::{in_time, until};

async fn demo(server: &Server) -> Sandbox {
    let client = server.client().await;
    client.create().name("demo").send().await.unwrap().sandbox
}

fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

#[tokio::test]
async fn attach_brings_back_and_never_makes() {
    let server = Server::start().await;
    let sandbox = demo(&server).await;
    let first = in_time(sandbox.attach()).await.unwrap();
    assert_eq!(first.state(), SandboxState::Ready);
    sandbox.run(Command::shell("echo kept > file")).send().await.unwrap();
    let suspended = sandbox.suspend(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(suspended.state(), SandboxState::Suspended);
    let back = in_time(sandbox.attach()).await.unwrap();
    assert_eq!((back.state(), &back.uid), (SandboxState::Ready, &first.uid));
    assert_ne!(back.incarnation, first.incarnation);
    let kept = sandbox.run(Command::shell("cat file")).send().await.unwrap();
    assert_eq!(kept.stdout.unwrap().head, "kept\n");
    // One that expects the incarnation before is told.
    let stale = sandbox.clone().expecting(first.incarnation);
    let refused = stale.run(Command::shell("true")).send().await.unwrap_err();
    assert!(matches!(refused, Error::Restarted(_)), "{refused:?}");

    let nobody = server.client().await.sandbox("nobody");
    let refused = nobody.attach().await.unwrap_err();
    assert_eq!(refused.reason(), Some(ErrorReason::SandboxNotFound));
    assert_eq!(server.client().await.list("").await.unwrap().len(), 1);
}

#[tokio::test]
async fn labels_and_etags() {
    let server = Server::start().await;
    let sandbox = demo(&server).await;
    let first = sandbox.set_labels(labels(&[("a", "1"), ("b", "2")])).await.unwrap();
    let second = sandbox.set_labels(labels(&[("b", "3")])).await.unwrap();
    assert_eq!(second.labels, labels(&[("b", "3")]), "these and no others");
    assert_ne!(second.etag, first.etag);
    let bad = sandbox.set_labels(labels(&[("a b", "")])).await.unwrap_err();
    assert_eq!(bad.reason(), Some(ErrorReason::InvalidArgument));

    let settings = SandboxSettings {
        labels: labels(&[("won", "")]),
        ..SandboxSettings::default()
    };
    let late = sandbox
        .update(settings.clone(), &["labels"], &first.etag)
        .await
        .unwrap_err();
    assert_eq!(late.reason(), Some(ErrorReason::EtagMismatch));
    let done = sandbox.update(settings, &["labels"], &second.etag).await.unwrap();
    assert_eq!(done.labels, labels(&[("won", "")]));
    let nothing = sandbox
        .update(SandboxSettings::default(), &["nonsense"], "")
        .await
        .unwrap_err();
    assert_eq!(nothing.reason(), Some(ErrorReason::InvalidArgument));
    let later = sandbox.extend(Duration::from_secs(7200)).await.unwrap();
    assert_ne!(later.deadline, done.deadline);
    assert_eq!(sandbox.get().await.unwrap().labels, done.labels);
}

#[tokio::test]
async fn follow_new_leaves_out_what_was() {
    let server = Server::start().await;
    let sandbox = demo(&server).await;
    let script = "echo old; while [ ! -e go ]; do sleep 0.02; done; echo new; exit 3";
    let started = sandbox.start(Command::shell(script)).await.unwrap();
    until("nothing is written", async || {
        let info = sandbox.exec_info(&started.exec_id).await.unwrap();
        info.written.unwrap_or_default().stdout == 4
    })
    .await;
    let mut exec = sandbox.attach_exec(&started.exec_id).follow_new().await.unwrap();
    sandbox.run(Command::shell("touch go")).send().await.unwrap();
    let mut written = Vec::new();
    let mut outcome = None;
    while let Some(event) = in_time(exec.next()).await {
        match event.unwrap() {
            Event::Output { offset, data, .. } => {
                assert_eq!(offset, 4 + written.len() as u64);
                written.extend_from_slice(&data);
            }
            Event::Exited(exit) => outcome = exit.status,
            Event::Gap { from, to, .. } => panic!("a gap from {from} to {to}"),
            _ => {}
        }
    }
    assert_eq!((written.as_slice(), outcome), (&b"new\n"[..], Some(Status::Code(3))));
    assert_eq!(exec.seen().stdout, 8);
    // All of it is there for whoever wants it.
    let all = sandbox.attach_exec(&started.exec_id).follow().output().await.unwrap();
    assert_eq!(all.stdout, "old\nnew\n");
    assert!(matches!(all.outcome, Outcome::Exited(_)));
    let unknown = sandbox.attach_exec("nothing").follow_new().await.unwrap_err();
    assert_eq!(unknown.reason(), Some(ErrorReason::ExecNotFound));
}

#[tokio::test]
async fn a_caller_that_goes_takes_its_command_along_if_it_said_so() {
    let server = Server::start().await;
    let sandbox = demo(&server).await;
    let state = async |id: &str| sandbox.exec_info(id).await.map(|info| (info.state(), info.exit));
    let running = async |id: &str| {
        until("it does not run", async || {
            state(id).await.is_ok_and(|(state, _)| state == ExecState::Running)
        })
        .await;
    };
    let kept = tokio::spawn(sandbox.run(Command::shell("exec sleep 1000").id("kept")).send());
    let gone = sandbox.run(Command::shell("exec sleep 1000").id("gone"));
    let gone = tokio::spawn(gone.kill_when_gone(Duration::ZERO).send());
    running("kept").await;
    running("gone").await;
    kept.abort();
    gone.abort();
    until("it runs on", async || {
        state("gone").await.unwrap().0 != ExecState::Running
    })
    .await;
    let (_, exit) = state("gone").await.unwrap();
    assert_eq!(exit.unwrap().status, Some(Status::Signal(9)));
    assert_eq!(state("kept").await.unwrap().0, ExecState::Running);

    // Who comes back in time keeps it.
    let command = Command::shell("while [ ! -e go ]; do sleep 0.02; done; exit 5").id("back");
    let run = sandbox.run(command).kill_when_gone(Duration::from_secs(600));
    let first = tokio::spawn(run.clone().send());
    running("back").await;
    first.abort();
    let second = tokio::spawn(run.send());
    sandbox.run(Command::shell("touch go")).send().await.unwrap();
    let answer = in_time(second).await.unwrap().unwrap();
    assert_eq!(answer.exec.unwrap().exit.unwrap().status, Some(Status::Code(5)));
    sandbox.delete().await.unwrap();
    server.until_nothing_is_left().await;
}
