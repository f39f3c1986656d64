//! A server that is told to stop: calls finish, streams are told to resume, sandboxes do not notice.

use std::time::Duration;

use sandgate::{
    Client, Command, Sandbox,
    v1::{self, ErrorReason, SandboxState},
};
use sandgate_tests::{new_id, procs, reason, server::Server};
use tokio::task::JoinHandle;
use tonic::{Code, Status, Streaming};

use super::{
    connect, delete_all, in_time, runs,
    told::Told,
    work::{Count, marked},
};

/// Reads a stream to its end, which must be a refusal.
fn last_word<T: Send + 'static>(mut stream: Streaming<T>) -> JoinHandle<Status> {
    tokio::spawn(async move {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a word"),
                Err(status) => return status,
            }
        }
    })
}

/// One stream of each kind, which resumes nothing by itself.
async fn streams(client: &Client, sandbox: &str, id: &str) -> Vec<JoinHandle<Status>> {
    let mut raw = client.raw();
    let attach = v1::ExecAttach {
        sandbox: sandbox.to_owned(),
        exec_id: id.to_owned(),
        ..Default::default()
    };
    let attach = v1::ExecRequest {
        request: Some(v1::exec_request::Request::Attach(attach)),
    };
    // It stays open on our side.
    let requests = tokio_stream::StreamExt::chain(tokio_stream::iter([attach]), tokio_stream::pending());
    let exec = raw.exec(requests).await.unwrap().into_inner();
    let target = v1::FollowTarget {
        exec_id: id.to_owned(),
        from: None,
    };
    let follow = v1::FollowExecRequest {
        sandbox: sandbox.to_owned(),
        targets: vec![target],
        ..Default::default()
    };
    let follow = raw.follow_exec(follow).await.unwrap().into_inner();
    let watch = raw.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let files = v1::WatchFilesRequest {
        sandbox: sandbox.to_owned(),
        path: "/workspace".to_owned(),
        ..Default::default()
    };
    let files = raw.watch_files(files).await.unwrap().into_inner();
    vec![last_word(exec), last_word(follow), last_word(watch), last_word(files)]
}

/// A suspend that takes its time, because a process does not want to end. Under way when this returns.
async fn slow_suspend(client: &Client, mark: &str) -> (Sandbox, JoinHandle<Result<v1::Sandbox, Status>>) {
    let sandbox = client.create().name("slow").send().await.unwrap().sandbox;
    let stubborn = Command::shell("trap '' TERM; echo ready; while :; do sleep 0.1; done").id("stubborn");
    sandbox.start(marked(stubborn, mark)).await.unwrap();
    while sandbox.exec_info("stubborn").await.unwrap().written.unwrap().stdout == 0 {}
    let request = v1::SuspendRequest {
        sandbox: "slow".to_owned(),
        grace: Some(prost_types::Duration { seconds: 3, nanos: 0 }),
        ..Default::default()
    };
    let mut raw = client.raw();
    let suspending = tokio::spawn(async move {
        let answer = raw.suspend(request).await?;
        Ok(answer.into_inner().sandbox.unwrap())
    });
    while sandbox.get().await.unwrap().state() == SandboxState::Ready {}
    (sandbox, suspending)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_stops_lets_calls_finish_and_streams_resume() {
    in_time(async {
        let mut server = Server::start().await;
        let (client, mark) = (server.client().await, new_id("stop"));
        let created = client.create().name("kept").send().await.unwrap();
        let (sandbox, pid) = (created.sandbox, server.sandbox_pid("kept"));
        let long = Count::long(100);
        let mut followers = Vec::new();
        for number in 0..3 {
            let sandbox = connect(&server.socket()).await.sandbox("kept");
            let mut exec = match number {
                0 => sandbox.exec(long.command(&mark)),
                _ => {
                    while sandbox.exec_info(&long.id).await.is_err() {}
                    sandbox.attach_exec(&long.id).follow()
                }
            };
            followers.push(tokio::spawn(async move { Told::follow(&mut exec).await }));
            while sandbox.exec_info(&long.id).await.is_err() {}
        }
        let run = Command::shell("echo run >> /workspace/ran; sleep 4; echo done");
        let running = tokio::spawn(sandbox.run(run).send());
        let streams = streams(&client, "kept", &long.id).await;
        let (slow, suspending) = slow_suspend(&client, &mark).await;

        let mut stopping = tokio::task::spawn_blocking(move || {
            let status = server.stop();
            (server, status)
        });
        for stream in streams {
            let status = stream.await.unwrap();
            assert_eq!(
                (status.code(), reason(&status)),
                (Code::Unavailable, ErrorReason::Stopping)
            );
        }
        let suspended = suspending.await.unwrap().unwrap();
        assert_eq!(
            suspended.state(),
            SandboxState::Suspended,
            "a call that was under way is finished"
        );
        let (mut stopped, status) = (&mut stopping).await.unwrap();
        assert!(status.success(), "{status:?}");
        assert_eq!(stopped.sandbox_pid("kept"), pid);
        assert!(
            procs::state(pid).is_some_and(|state| state != 'Z'),
            "the sandbox lives on"
        );

        // Long enough that there is something to catch up with.
        tokio::time::sleep(Duration::from_millis(300)).await;
        stopped.restart().await;
        for follower in followers {
            let (told, error) = follower.await.unwrap();
            assert!(error.is_none(), "{error:?}");
            long.check(&told);
        }
        let answer = running.await.unwrap().unwrap();
        assert_eq!(&answer.stdout.unwrap().head[..], b"done\n");
        let ran = sandbox.run(Command::shell("cat /workspace/ran")).send().await.unwrap();
        assert_eq!(&ran.stdout.unwrap().head[..], b"run\n", "it ran once");
        assert_eq!(runs(&sandbox).await, [long.id.as_str()], "it ran once");
        assert_eq!(stopped.sandbox_pid("kept"), pid, "nothing was started again");
        assert_eq!(sandbox.get().await.unwrap().incarnation, created.info.incarnation);
        assert_eq!(slow.get().await.unwrap().state(), SandboxState::Suspended);
        delete_all(&stopped, &mark).await;
    })
    .await;
}
