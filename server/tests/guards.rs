//! Who may call, over real sockets: the token, the name the server is called by, the web page that calls; and the id that
//! every request has.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

#[path = "support/running.rs"]
mod running;
#[path = "support/stub.rs"]
mod stub;

use sandgate_errors::Refusal;
use sandgate_proto::v1::{
    ErrorReason, FollowExecRequest, GetRequest, ListRequest, Sandbox, sandbox_service_client::SandboxServiceClient,
    sandbox_service_server::SERVICE_NAME,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::{Code, Request, Status, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{ServerReflectionRequest, server_reflection_client::ServerReflectionClient};

use self::{
    running::{Running, with},
    stub::Stub,
};

const PAGE: &str = "http://localhost:3000";
const ID: &str = "x-request-id";

async fn start() -> Running {
    Running::start(&format!("allowed_origins = [{PAGE:?}]"), Stub::served).await
}

fn sandbox(answer: tonic::Response<sandgate_proto::v1::GetResponse>) -> Sandbox {
    answer.into_inner().sandbox.unwrap()
}

fn refusal(status: &Status) -> Refusal {
    Refusal::from_status(status).unwrap_or_else(|| panic!("no reason: {status:?}"))
}

/// One HTTP/1.1 exchange as it is on the wire: head and body of the answer.
async fn exchange(server: &Running, head: &str, body: &[u8]) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let head = format!("{head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
    (head, answer[end + 4..].to_vec())
}

/// A gRPC-Web call of `method` with an empty message.
async fn web_call(server: &Running, method: &str, headers: &str) -> (String, String) {
    let host = server.addr;
    let head = format!(
        "POST /{SERVICE_NAME}/{method} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/grpc-web+proto{headers}"
    );
    let (head, body) = exchange(server, &head, &[0; 5]).await;
    (head, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn the_token_is_wanted_on_tcp() {
    let server = start().await;
    let mut without = SandboxServiceClient::new(server.channel());
    let status = without.get(GetRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert_eq!(refusal(&status).reason, ErrorReason::Unauthenticated);
    let path = server.dir.path().canonicalize().unwrap().join("state/token");
    assert!(status.message().contains(path.to_str().unwrap()), "{status}");

    let token = &server.token;
    for wrong in [
        "Bearer ",
        "Bearer x",
        token,
        &format!("Basic {token}"),
        &format!("Bearer {token}x"),
    ] {
        let mut client = SandboxServiceClient::with_interceptor(server.channel(), with("authorization", wrong));
        let status = client.get(GetRequest::default()).await.unwrap_err();
        assert_eq!(refusal(&status).reason, ErrorReason::Unauthenticated, "{wrong}");
        assert!(!status.message().contains(token.as_str()), "{status}");
    }
    for right in [format!("Bearer {token}"), format!("bearer {token}")] {
        let mut client = SandboxServiceClient::with_interceptor(server.channel(), with("authorization", &right));
        let answer = client.get(GetRequest::default()).await.unwrap();
        assert_eq!(sandbox(answer).name, "TokenHolder");
    }
    drop(without);
    server.stop().await;
}

#[tokio::test]
async fn the_unix_socket_wants_no_token_and_no_name() {
    let server = start().await;
    let mut client = SandboxServiceClient::new(server.local_channel().await);
    let answer = client.get(GetRequest::default()).await.unwrap();
    assert_eq!(sandbox(answer).name, "Owner");
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn health_wants_no_token_and_reflection_does() {
    let server = start().await;
    let mut health = HealthClient::new(server.channel());
    health.check(HealthCheckRequest::default()).await.unwrap();
    let ask = || tokio_stream::once(ServerReflectionRequest::default());
    let mut reflection = ServerReflectionClient::new(server.channel());
    let status = reflection.server_reflection_info(ask()).await.unwrap_err();
    assert_eq!(refusal(&status).reason, ErrorReason::Unauthenticated);
    let mut reflection = ServerReflectionClient::with_interceptor(server.channel(), server.bearer());
    reflection.server_reflection_info(ask()).await.unwrap();
    drop((health, reflection));
    server.stop().await;
}

#[tokio::test]
async fn only_names_of_this_machine_are_answered_to() {
    let server = start().await;
    let port = server.addr.port();
    for (name, good) in [
        (format!("localhost:{port}"), true),
        (format!("127.0.0.1:{port}"), true),
        (format!("[::1]:{port}"), true),
        (format!("evil.example:{port}"), false),
        ("localhost:1".to_owned(), false),
    ] {
        // HTTP/2, by `:authority`.
        let endpoint = Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
        let channel = endpoint
            .origin(format!("http://{name}").parse().unwrap())
            .connect_lazy();
        let mut client = SandboxServiceClient::with_interceptor(channel, server.bearer());
        let outcome = client.get(GetRequest::default()).await;
        assert_eq!(outcome.is_ok(), good, "{name}: {outcome:?}");
        if let Err(status) = outcome {
            assert_eq!(status.code(), Code::PermissionDenied);
            assert!(status.message().contains(&format!("127.0.0.1:{port}")), "{status}");
            assert!(status.metadata().contains_key(ID));
        }
        // HTTP/1.1, by `Host`.
        let (head, body) = exchange(&server, &format!("GET / HTTP/1.1\r\nhost: {name}"), b"").await;
        assert_eq!(!head.starts_with("http/1.1 403"), good, "{name}: {head}");
        let body = String::from_utf8(body).unwrap();
        assert!(good || body.contains("check Host"), "{body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_web_page_that_is_listed_can_call() {
    let server = start().await;
    let preflight = format!(
        "OPTIONS /{SERVICE_NAME}/Get HTTP/1.1\r\nhost: {}\r\norigin: {PAGE}\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization,content-type,x-grpc-web",
        server.addr
    );
    let (head, _) = exchange(&server, &preflight, b"").await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    for line in [
        &format!("access-control-allow-origin: {PAGE}"),
        "access-control-allow-methods: post",
        "access-control-allow-headers: authorization,content-type,x-grpc-web",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }

    let headers = format!("\r\norigin: {PAGE}\r\nauthorization: Bearer {}", server.token);
    let (head, body) = web_call(&server, "Get", &headers).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("content-type: application/grpc-web+proto"), "{head}");
    assert!(head.contains(&format!("access-control-allow-origin: {PAGE}")), "{head}");
    for exposed in ["grpc-status", "grpc-message", "grpc-status-details-bin", ID] {
        let line = head
            .lines()
            .find(|line| line.starts_with("access-control-expose-headers"));
        assert!(line.unwrap().contains(exposed), "{exposed}: {head}");
    }
    assert!(
        body.contains("TokenHolder") && body.contains("grpc-status:0"),
        "{body:?}"
    );
    assert!(body.contains(ID), "trailers carry the id too: {body:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_refused_call_of_a_web_page_can_be_read_by_it() {
    let server = start().await;
    let (head, body) = web_call(&server, "Get", &format!("\r\norigin: {PAGE}")).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains(&format!("access-control-allow-origin: {PAGE}")), "{head}");
    assert!(format!("{head}{body}").contains("grpc-status: 16"), "{head} {body}");
    assert!(head.contains(ID), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn a_web_page_that_is_not_listed_is_refused() {
    let server = start().await;
    for page in [
        "http://evil.example",
        "null",
        "http://localhost:3001",
        "http://LOCALHOST:3000",
    ] {
        let headers = format!("\r\norigin: {page}\r\nauthorization: Bearer {}", server.token);
        let (head, body) = web_call(&server, "Get", &headers).await;
        assert!(head.starts_with("http/1.1 403"), "{head}");
        assert!(!head.contains("access-control-"), "{head}");
        assert!(body.contains("allowed_origins"), "{body}");
        assert!(head.contains(ID), "{head}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_no_grpc_is_told_so() {
    let server = start().await;
    let (head, _) = exchange(&server, &format!("GET / HTTP/1.1\r\nhost: {}", server.addr), b"").await;
    assert!(head.starts_with("http/1.1 4"), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn a_callers_request_id_is_taken_over() {
    let server = start().await;
    let mut client = server.client();
    let mut request = Request::new(GetRequest::default());
    request.metadata_mut().insert(ID, "job-42".parse().unwrap());
    let answer = client.get(request).await.unwrap();
    assert_eq!(answer.metadata().get(ID).unwrap(), "job-42");
    assert_eq!(sandbox(answer).uid, "job-42", "the service sees it");
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn every_answer_and_every_error_has_a_request_id() {
    let server = start().await;
    let mut client = server.client();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let answer = client.get(GetRequest::default()).await.unwrap();
        ids.push(answer.metadata().get(ID).unwrap().to_str().unwrap().to_owned());
    }
    let status = client.list(ListRequest::default()).await.unwrap_err();
    ids.push(status.metadata().get(ID).unwrap().to_str().unwrap().to_owned());
    let unauthenticated = SandboxServiceClient::new(server.channel())
        .get(GetRequest::default())
        .await
        .unwrap_err();
    ids.push(unauthenticated.metadata().get(ID).unwrap().to_str().unwrap().to_owned());
    // An error in the middle of a stream.
    let mut stream = client.follow_exec(FollowExecRequest::default()).await.unwrap();
    let id = stream.metadata().get(ID).unwrap().clone();
    stream.get_mut().message().await.unwrap().unwrap();
    server.stopping.begin();
    let status = stream.get_mut().message().await.unwrap_err();
    assert_eq!(status.metadata().get(ID), Some(&id));
    ids.push(id.to_str().unwrap().to_owned());
    let mut unique = ids.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), 6, "{ids:?}");
    drop((client, stream));
    server.ended().await;
}
