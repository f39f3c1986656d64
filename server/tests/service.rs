//! The service as callers meet it: a real server on a free port, and real clients.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/running.rs"]
mod running;

use prost::Message as _;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};
use sandgate_errors::Refusal;
use sandgate_proto::v1::{ErrorReason, sandbox_service_server::SERVICE_NAME};
use sandgate_server::{Sandboxes, Service};
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, service::interceptor::InterceptedService,
    transport::Channel,
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_prost::ProstCodec;
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use self::{
    fake::Fake,
    running::{Running, WithMetadata},
};

/// Calls that need no argument.
const FINE_EMPTY: [&str; 3] = ["Create", "List", "Watch"];

async fn start() -> Running {
    Running::start("", |stopping| Service::new(Sandboxes::new(Fake::new(), stopping))).await
}

/// All methods of the public service, from the descriptors, so that none can be forgotten.
fn methods() -> Vec<MethodDescriptorProto> {
    let files = FileDescriptorSet::decode(sandgate_proto::FILE_DESCRIPTOR_SET)
        .unwrap()
        .file;
    let file = files
        .iter()
        .find(|file| file.name() == "sandgate/v1/sandbox_service.proto")
        .unwrap();
    file.service[0].method.clone()
}

/// Calls any method with an empty message, of whatever kind it is, and gives the status that it fails with.
async fn call(channel: InterceptedService<Channel, WithMetadata>, method: &MethodDescriptorProto) -> Status {
    let path = PathAndQuery::try_from(format!("/{SERVICE_NAME}/{}", method.name())).unwrap();
    // `()` is the empty message: it encodes to nothing, and takes whatever comes.
    let codec = ProstCodec::<(), ()>::default();
    let one = || Request::new(tokio_stream::once(()));
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let outcome = match (method.client_streaming(), method.server_streaming()) {
        (false, false) => grpc.unary(Request::new(()), path, codec).await.map(drop),
        (true, false) => grpc.client_streaming(one(), path, codec).await.map(drop),
        (false, true) => grpc.server_streaming(Request::new(()), path, codec).await.map(drop),
        (true, true) => grpc.streaming(one(), path, codec).await.map(drop),
    };
    outcome.expect_err(method.name())
}

#[tokio::test]
async fn every_call_refuses_an_empty_request_and_names_the_field() {
    let server = start().await;
    let methods = methods();
    assert_eq!(methods.len(), 24);
    for method in methods.iter().filter(|method| !FINE_EMPTY.contains(&method.name())) {
        let status = call(InterceptedService::new(server.channel(), server.bearer()), method).await;
        let refusal = Refusal::from_status(&status).unwrap_or_else(|| panic!("{}: no reason", method.name()));
        if method.name() == "Forward" {
            assert_eq!(status.code(), Code::Unimplemented);
            assert_eq!(refusal.metadata.get("rpc").map(String::as_str), Some("Forward"));
            continue;
        }
        assert_eq!(refusal.reason, ErrorReason::InvalidArgument, "{}", method.name());
        let field = refusal.field.unwrap();
        assert!(["sandbox", "request", "message"].contains(&field.as_str()), "{field}");
    }
    server.stop().await;
}

#[tokio::test]
async fn health_is_serving() {
    let server = start().await;
    let mut health = HealthClient::new(server.channel());
    for service in ["", SERVICE_NAME] {
        let answer = health
            .check(HealthCheckRequest {
                service: service.to_owned(),
            })
            .await
            .unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving, "{service:?}");
    }
    drop(health);
    server.stop().await;
}

#[tokio::test]
async fn reflection_lists_what_is_served_and_nothing_else() {
    let server = start().await;
    let mut reflection = ServerReflectionClient::with_interceptor(server.channel(), server.bearer());
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = reflection
        .server_reflection_info(tokio_stream::once(ask))
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("{answer:?}")
    };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(names, ["grpc.health.v1.Health", SERVICE_NAME]);
    drop((answers, reflection));
    server.stop().await;
}
