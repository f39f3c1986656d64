//! HTTP/2 inside a WebSocket is HTTP/2.

use http::Request;
use http_body_util::Full;
use rand::Rng as _;
use sandgate_proto::runtime::v1::{
    DownloadPath, DownloadRequest, ExecOffsets, FollowExecRequest, FollowExecResponse, UploadEntry, UploadEntryEnd,
    UploadRequest, UploadStart, download_response, follow_from::Place, upload_request,
};
use sandgate_tests::{Client, Output, in_time, new_id, random_bytes, seeded, shell, start_request, target};
use tonic::{Status, Streaming};

use crate::{
    around::{Networked, send, websocket},
    proxy::CuttingProxy,
};

async fn follow(
    net: &Networked,
    client: &mut Client,
    id: &str,
    from: ExecOffsets,
) -> Result<Streaming<FollowExecResponse>, Status> {
    let request = FollowExecRequest {
        targets: vec![target(id, Place::Offsets(from))],
        ..Default::default()
    };
    client
        .follow_exec(net.good(request))
        .await
        .map(tonic::Response::into_inner)
}

/// Takes events until the end, or until the stream is cut.
async fn take_all(events: &mut Streaming<FollowExecResponse>, output: &mut Output) -> Result<(), Status> {
    while let Some(message) = events.message().await? {
        output.take(message.event.unwrap());
    }
    Ok(())
}

#[tokio::test]
async fn what_is_cut_is_resumed_without_loss() {
    let mut rng = seeded();
    let net = Networked::start(&[]).await;
    let proxy = CuttingProxy::start(net.address, 3 << 20, rng.random()).await;
    let id = new_id("cut");
    let spec = shell(
        "i=0; while [ $i -lt 200 ]; do head -c 100000 /dev/zero | tr '\\0' \"$(printf '\\\\%03o' $((i % 250 + 1)))\"; i=$((i + 1)); done",
    );
    let mut direct = net.websocket().await;
    direct.start_exec(net.good(start_request(&id, spec))).await.unwrap();
    let (mut output, mut cuts) = (Output::default(), 0);
    let whole = async {
        while output.ended.is_none() {
            let attempt = async {
                let mut client = websocket(proxy.address)
                    .await
                    .map_err(|error| Status::unavailable(error.to_string()))?;
                let mut events = follow(&net, &mut client, &id, output.next).await?;
                take_all(&mut events, &mut output).await
            };
            if attempt.await.is_err() {
                cuts += 1;
            }
        }
    };
    in_time(whole).await;
    assert!(cuts >= 5, "only {cuts} cuts");
    assert!(output.gaps.is_empty());
    let expected: Vec<u8> = (0..200_u32)
        .flat_map(|n| std::iter::repeat_n((n % 250 + 1) as u8, 100_000))
        .collect();
    assert!(output.stdout == expected);
}

#[tokio::test]
async fn eight_stopped_readers_hold_up_nobody() {
    const BYTES: usize = 20_000_000;
    let net = Networked::start(&[]).await;
    let mut client = net.websocket().await;
    let id = new_id("eight");
    let spec = shell(format!("head -c {BYTES} /dev/zero"));
    client.start_exec(net.good(start_request(&id, spec))).await.unwrap();
    let mut stopped = Vec::new();
    for _ in 0..8 {
        stopped.push(follow(&net, &mut client, &id, ExecOffsets::default()).await.unwrap());
    }
    let mut output = Output::default();
    let mut events = follow(&net, &mut client, &id, ExecOffsets::default()).await.unwrap();
    in_time(take_all(&mut events, &mut output)).await.unwrap();
    assert_eq!(output.stdout.len(), BYTES);
    for mut events in stopped {
        let mut output = Output::default();
        in_time(take_all(&mut events, &mut output)).await.unwrap();
        assert_eq!(output.stdout.len(), BYTES);
    }
}

#[tokio::test]
async fn files_go_both_ways() {
    let mut rng = seeded();
    let net = Networked::start(&[]).await;
    let mut client = net.websocket().await;
    let content = random_bytes(&mut rng, 30_000_000);
    let message = |message| UploadRequest { message: Some(message) };
    let entry = UploadEntry {
        path: "dir/file".into(),
        ..Default::default()
    };
    let mut messages = vec![
        message(upload_request::Message::Start(UploadStart::default())),
        message(upload_request::Message::Entry(entry)),
    ];
    let chunk = |chunk: &[u8]| message(upload_request::Message::Chunk(chunk.to_vec().into()));
    messages.extend(content.chunks(64 << 10).map(chunk));
    messages.push(message(upload_request::Message::EntryEnd(UploadEntryEnd::default())));
    let answer = client
        .upload(net.good(tokio_stream::iter(messages)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((answer.entries, answer.failures_total), (1, 0));
    let request = DownloadRequest {
        paths: vec![DownloadPath {
            path: "dir/file".into(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut stream = client.download(net.good(request)).await.unwrap().into_inner();
    let mut received = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        if let Some(download_response::Message::Chunk(chunk)) = message.message {
            received.extend_from_slice(&chunk);
        }
    }
    assert!(received == content);
}

#[tokio::test]
async fn only_our_upgrade_is_answered() {
    let net = Networked::start(&[]).await;
    let asked = |protocol: &str, version: &str| {
        Request::get(sandgate_websocket::PATH)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", version)
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", protocol)
            .body(Full::default())
            .unwrap()
    };
    assert_eq!(send(net.address, asked("chat", "13")).await.status, 400);
    assert_eq!(send(net.address, asked("sandgate.v1", "12")).await.status, 400);
    assert_eq!(net.get(sandgate_websocket::PATH).await.status, 400);
    let mut client = net.websocket().await;
    client.hello(net.good(Default::default())).await.unwrap();
}
