//! Calls that the server refuses by itself, each at a server of its own.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use sandgate::{
    Address, Client, Endpoint, RawClient,
    v1::{
        AttachRequest, CreateRequest, ErrorReason, FollowExecRequest, FollowTarget, ForwardRequest, ForwardStart,
        GetExecRequest, GetRequest, ResumeRequest, RunRequest, SandboxSettings, SuspendRequest, UpdateRequest,
        WatchRequest, exec_spec, forward_request::Request as Forwarded, sandbox_settings::End,
    },
};
use sandgate_errors::Refusal;
use sandgate_tests::server::{Server, ServerOptions};
use tonic::{Request, Status, Streaming};

use crate::Refused;

const NAME: &str = "box";

async fn served(config: &str) -> (Server, RawClient) {
    let server = Server::with_config(config).await;
    let client = server.client().await.raw();
    (server, client)
}

/// A server with one sandbox.
async fn with_sandbox() -> (Server, RawClient) {
    let (server, mut client) = served("").await;
    client.create(create(NAME, "")).await.unwrap();
    (server, client)
}

async fn suspended() -> (Server, RawClient) {
    let (server, mut client) = with_sandbox().await;
    let suspend = SuspendRequest {
        sandbox: NAME.into(),
        ..Default::default()
    };
    client.suspend(suspend).await.unwrap();
    (server, client)
}

fn create(name: &str, template: &str) -> CreateRequest {
    CreateRequest {
        name: name.into(),
        template: template.into(),
        ..Default::default()
    }
}

fn get() -> GetRequest {
    GetRequest { sandbox: NAME.into() }
}

fn run(script: &str) -> RunRequest {
    let mut request = RunRequest {
        sandbox: NAME.into(),
        exec_id: "run".into(),
        ..Default::default()
    };
    request.spec.get_or_insert_default().command = Some(exec_spec::Command::Shell(script.into()));
    request
}

fn refusal(status: &Status) -> Refusal {
    Refusal::from_status(status).unwrap()
}

/// What a stream ends with.
async fn failure<T>(stream: &mut Streaming<T>) -> Status {
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended as if it were complete"),
            Err(status) => return status,
        }
    }
}

pub(crate) async fn a_name_that_is_none() -> Refused {
    let (_server, mut client) = served("").await;
    let status = client.create(create("No Name", "")).await.unwrap_err();
    assert_eq!(refusal(&status).field.as_deref(), Some("name"));
    Refused::Call(status)
}

pub(crate) async fn a_call_that_is_to_come() -> Refused {
    let (_server, mut client) = with_sandbox().await;
    let start = ForwardStart {
        sandbox: NAME.into(),
        port: 80,
        ..Default::default()
    };
    let request = ForwardRequest {
        request: Some(Forwarded::Start(start)),
    };
    let status = client.forward(tokio_stream::iter([request])).await.unwrap_err();
    assert_eq!(refusal(&status).metadata["rpc"], "Forward");
    Refused::Call(status)
}

pub(crate) async fn a_stream_when_the_server_stops() -> Refused {
    let (mut server, mut client) = served("").await;
    let mut watch = client.watch(WatchRequest::default()).await.unwrap().into_inner();
    watch.message().await.unwrap();
    // It waits for its streams, which wait for us.
    let stopped = tokio::task::spawn_blocking(move || server.stop());
    let status = failure(&mut watch).await;
    assert!(stopped.await.unwrap().success());
    Refused::Call(status)
}

/// Over TCP, where the server is not known by the mode of its socket.
async fn over_tcp() -> (Server, Endpoint) {
    let server = Server::start_with(ServerOptions {
        tcp: true,
        ..Default::default()
    })
    .await;
    let address: Address = server.tcp_address().parse().unwrap();
    (server, Endpoint::new(address))
}

pub(crate) async fn no_token() -> Refused {
    let (_server, endpoint) = over_tcp().await;
    let mut client = Client::connect(endpoint.clone()).await.unwrap().raw();
    let none = client.get(get()).await.unwrap_err();
    let wrong = endpoint.with_token("0123456789").unwrap();
    let mut client = Client::connect(wrong).await.unwrap().raw();
    let wrong = client.get(get()).await.unwrap_err();
    assert_eq!(sandgate_tests::reason(&none), sandgate_tests::reason(&wrong));
    Refused::Call(none)
}

pub(crate) async fn a_web_page_that_is_not_listed() -> Refused {
    let (server, endpoint) = over_tcp().await;
    let token = fs::read_to_string(server.state_dir().join("token")).unwrap();
    let endpoint = endpoint.with_token(token.trim()).unwrap();
    let mut client = Client::connect(endpoint).await.unwrap().raw();
    let mut request = Request::new(get());
    let origin = "http://evil.example".parse().unwrap();
    request.metadata_mut().insert("origin", origin);
    Refused::Call(client.get(request).await.unwrap_err())
}

pub(crate) async fn one_sandbox_too_many() -> Refused {
    let (_server, mut client) = served("[limits]\nsandboxes = 1\n").await;
    client.create(create("first", "")).await.unwrap();
    let status = client.create(create("second", "")).await.unwrap_err();
    let refusal = refusal(&status);
    assert_eq!(refusal.metadata["limit"], "1");
    assert!(refusal.retry_after.is_some());
    Refused::Call(status)
}

pub(crate) async fn a_name_that_nobody_has() -> Refused {
    let (_server, mut client) = served("").await;
    for status in [
        client.run(run("true")).await.unwrap_err(),
        client
            .attach(AttachRequest {
                sandbox: NAME.into(),
                ..Default::default()
            })
            .await
            .unwrap_err(),
    ] {
        assert_eq!(sandgate_tests::reason(&status), ErrorReason::SandboxNotFound);
    }
    Refused::Call(client.get(get()).await.unwrap_err())
}

pub(crate) async fn a_name_of_another_template() -> Refused {
    let (_server, mut client) = served("[template.other]\n").await;
    client.create(create(NAME, "")).await.unwrap();
    let status = client.create(create(NAME, "other")).await.unwrap_err();
    assert_eq!(refusal(&status).metadata["template"], "default");
    Refused::Call(status)
}

pub(crate) async fn a_command_while_it_sleeps() -> Refused {
    let (_server, mut client) = suspended().await;
    Refused::Call(client.run(run("true")).await.unwrap_err())
}

/// Each tells the incarnation that is gone: expected by the call, or spoken to by its stream.
pub(crate) async fn an_incarnation_that_is_gone() -> Refused {
    let (server, mut client) = with_sandbox().await;
    let first = client
        .get(get())
        .await
        .unwrap()
        .into_inner()
        .sandbox
        .unwrap()
        .incarnation;
    let told = |status: &Status| {
        assert_eq!(sandgate_tests::reason(status), ErrorReason::SandboxRestarted);
        assert_eq!(refusal(status).metadata["incarnation"], first, "{status:?}");
    };
    let target = FollowTarget {
        exec_id: "run".into(),
        from: None,
    };
    let follow = FollowExecRequest {
        sandbox: NAME.into(),
        targets: vec![target],
        ..Default::default()
    };
    let mut sleep = run("sleep 1000");
    sleep.max_wait = Some(prost_types::Duration::default());
    client.run(sleep).await.unwrap();
    let mut events = client.follow_exec(follow).await.unwrap().into_inner();
    events.message().await.unwrap();
    kill_process(Pid::from_raw(server.sandbox_pid(NAME)).unwrap(), Signal::KILL).unwrap();
    told(&failure(&mut events).await);
    let mut expecting = run("true");
    expecting.exec_id = "again".into();
    expecting.expected_incarnation.clone_from(&first);
    // Asleep, where the server tells; and awake again, where the runtime does.
    told(&client.run(expecting.clone()).await.unwrap_err());
    client
        .resume(ResumeRequest {
            sandbox: NAME.into(),
            ..Default::default()
        })
        .await
        .unwrap();
    told(&client.run(expecting).await.unwrap_err());
    let suspend = SuspendRequest {
        sandbox: NAME.into(),
        expected_incarnation: first.clone(),
        ..Default::default()
    };
    let status = client.suspend(suspend).await.unwrap_err();
    told(&status);
    Refused::Call(status)
}

/// Its monitor is held still in the middle of a resume, so that it stays there.
pub(crate) async fn a_command_while_it_is_brought_back() -> Refused {
    let (server, mut client) = suspended().await;
    let monitor = server.monitor_pid(&server.sandbox_dir(NAME)).unwrap();
    kill_process(monitor, Signal::STOP).unwrap();
    let resume = ResumeRequest {
        sandbox: NAME.into(),
        no_wait: true,
        ..Default::default()
    };
    client.resume(resume).await.unwrap();
    let status = client.run(run("true")).await.unwrap_err();
    assert!(refusal(&status).retry_after.is_some());
    kill_process(monitor, Signal::CONT).unwrap();
    Refused::Call(status)
}

pub(crate) async fn a_change_of_what_was_changed() -> Refused {
    let (_server, mut client) = with_sandbox().await;
    let seen = client.get(get()).await.unwrap().into_inner().sandbox.unwrap().etag;
    let update = UpdateRequest {
        sandbox: NAME.into(),
        settings: Some(SandboxSettings {
            end: Some(End::Ttl(prost_types::Duration {
                seconds: 60,
                ..Default::default()
            })),
            ..Default::default()
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["ttl".into()],
        }),
        etag: seen,
    };
    let changed = client.update(update.clone()).await.unwrap().into_inner();
    let status = client.update(update).await.unwrap_err();
    assert_eq!(refusal(&status).metadata["etag"], changed.sandbox.unwrap().etag);
    Refused::Call(status)
}

pub(crate) async fn a_template_that_nobody_has() -> Refused {
    let (_server, mut client) = served("").await;
    Refused::Call(client.create(create(NAME, "nowhere")).await.unwrap_err())
}

pub(crate) async fn a_mechanism_that_is_not_to_be_had() -> Refused {
    // There is no such limit, so it is not in force.
    let (server, mut client) = served("[template.default]\nrequire = [\"disk.size\"]\n").await;
    let status = client.create(create(NAME, "")).await.unwrap_err();
    assert_eq!(refusal(&status).metadata["mechanism"], "disk.size");
    server.until_nothing_is_left().await;
    Refused::Call(status)
}

/// The server passes on what the runtime says.
pub(crate) async fn an_exec_that_was_never_started() -> Refused {
    let (_server, mut client) = with_sandbox().await;
    let request = GetExecRequest {
        sandbox: NAME.into(),
        exec_id: "unknown".into(),
        ..Default::default()
    };
    Refused::Call(client.get_exec(request).await.unwrap_err())
}
