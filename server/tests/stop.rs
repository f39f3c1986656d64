//! How the server ends: calls finish, streams are told to resume, nobody waits for ever.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "support/running.rs"]
mod running;
#[path = "support/stub.rs"]
mod stub;

use std::sync::Arc;

use sandgate_errors::Refusal;
use sandgate_proto::v1::{
    DownloadRequest, ErrorReason, FollowExecRequest, GetRequest, WatchRequest,
    sandbox_service_client::SandboxServiceClient, sandbox_service_server::SandboxServiceServer,
};
use sandgate_server::Stopping;
use tokio::sync::Semaphore;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use self::{running::Running, stub::Stub};

/// Reads a stream to its end.
async fn end<T>(stream: &mut Streaming<T>) -> Status {
    loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended as if all was said"),
            Err(status) => return status,
        }
    }
}

fn is_stopping(status: &Status) {
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let refusal = Refusal::from_status(status).unwrap_or_else(|| panic!("no reason: {status:?}"));
    assert_eq!(refusal.reason, ErrorReason::Stopping, "{status}");
}

#[tokio::test]
async fn streams_are_told_that_the_server_is_stopping() {
    let server = Running::start("", Stub::served).await;
    let mut client = server.client();
    let mut polite = client.watch(WatchRequest::default()).await.unwrap().into_inner();
    let mut silent = client
        .follow_exec(FollowExecRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut busy = client.download(DownloadRequest::default()).await.unwrap().into_inner();
    let mut health = HealthClient::new(server.channel());
    let mut states = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    polite.message().await.unwrap().unwrap();
    silent.message().await.unwrap().unwrap();
    busy.message().await.unwrap().unwrap();
    assert_eq!(
        states.message().await.unwrap().unwrap().status(),
        ServingStatus::Serving
    );

    server.stopping.begin();
    let told = end(&mut polite).await;
    is_stopping(&told);
    assert_eq!(told.message(), "the stub is stopping", "by the service itself");
    assert_eq!(
        states.message().await.unwrap().unwrap().status(),
        ServingStatus::NotServing
    );
    // These do not end by themselves.
    is_stopping(&end(&mut silent).await);
    is_stopping(&end(&mut busy).await);
    is_stopping(&end(&mut states).await);
    drop((client, health));
    server.ended().await;
}

/// A server whose `Get` waits to be let, and what lets it and tells of it.
async fn held() -> (Running, Stub) {
    let mut stub = None;
    let server = Running::start("", |stopping| {
        let held = Stub {
            gate: Arc::new(Semaphore::new(0)),
            ..Stub::new(stopping)
        };
        SandboxServiceServer::new(stub.insert(held).clone())
    })
    .await;
    (server, stub.unwrap())
}

#[tokio::test]
async fn a_call_that_was_taken_is_answered() {
    let (server, stub) = held().await;
    let mut client = server.client();
    let call = tokio::spawn(async move { client.get(GetRequest::default()).await });
    stub.taken.acquire().await.unwrap().forget();
    server.stopping.begin();
    // Longer than streams have.
    tokio::time::sleep(Stopping::STREAM_GRACE * 3 / 2).await;
    stub.gate.add_permits(1);
    call.await.unwrap().unwrap();
    server.ended().await;
}

#[tokio::test]
async fn nobody_new_is_taken_on() {
    let server = Running::start("", Stub::served).await;
    let mut open = server.client();
    let stream = open.follow_exec(FollowExecRequest::default()).await.unwrap();
    server.stopping.begin();
    let mut stream = stream.into_inner();
    is_stopping(&end(&mut stream).await);
    let status = server.client().get(GetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    drop((open, stream));
    server.ended().await;
}

#[tokio::test]
async fn a_second_word_ends_it_at_once() {
    let (server, stub) = held().await;
    let mut client = SandboxServiceClient::new(server.local_channel().await);
    let call = tokio::spawn(async move { client.get(GetRequest::default()).await });
    stub.taken.acquire().await.unwrap().forget();
    server.stopping.begin();
    server.stopping.at_once();
    // The call would never end.
    server.ended().await;
    call.abort();
}
