//! A library of messages understands us, and we it.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use futures_util::{SinkExt as _, StreamExt as _};
use http::HeaderMap;
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use sandgate_websocket::{PATH, PROTOCOL, WebSocket, client};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio_tungstenite::{
    WebSocketStream, accept_hdr_async,
    tungstenite::{
        Message,
        handshake::server::{Request, Response},
        http::HeaderValue,
        protocol::Role,
    },
};

const TOTAL: usize = 3_000_000;

fn bytes(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; TOTAL];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Sends everything back, with pings in between, and closes when all has come.
async fn echo(mut peer: WebSocketStream<DuplexStream>) {
    let mut received = 0;
    while received < TOTAL {
        match peer.next().await.unwrap().unwrap() {
            Message::Binary(payload) => {
                received += payload.len();
                peer.feed(Message::Binary(payload)).await.unwrap();
                peer.send(Message::Ping(vec![1, 2, 3].into())).await.unwrap();
            }
            Message::Pong(payload) => assert_eq!(&payload[..], [1, 2, 3]),
            other => unreachable!("{other}"),
        }
    }
    peer.close(None).await.unwrap();
    while peer.next().await.is_some_and(|message| message.is_ok()) {}
}

async fn exchange(ours: WebSocket<DuplexStream>, mut random: StdRng) {
    let sent = bytes(&mut random);
    let expected = sent.clone();
    let (mut reader, mut writer) = split(ours);
    let writing = tokio::spawn(async move {
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(random.random_range(1..150_000).min(rest.len()));
            writer.write_all(piece).await.unwrap();
            rest = more;
        }
        writer.flush().await.unwrap();
        writer
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received).await.unwrap();
    assert!(received == expected);
    writing.await.unwrap().shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_with_another_server() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (ours, theirs) = duplex(100_000);
    let serving = tokio::spawn(async move {
        #[allow(clippy::result_large_err, reason = "the library's signature")]
        let choose = |request: &Request, mut response: Response| {
            assert_eq!(request.headers()["x-sandbox-id"], "one");
            let headers = response.headers_mut();
            headers.insert("sec-websocket-protocol", HeaderValue::from_static(PROTOCOL));
            Ok(response)
        };
        echo(accept_hdr_async(theirs, choose).await.unwrap()).await;
    });
    let mut headers = HeaderMap::new();
    headers.insert("x-sandbox-id", http::HeaderValue::from_static("one"));
    let ours = client(ours, "sandbox", PATH, &headers).await.unwrap();
    exchange(ours, StdRng::seed_from_u64(seed)).await;
    serving.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_server_with_another_client() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let (ours, theirs) = duplex(100_000);
    let peer = tokio::spawn(async move {
        echo(WebSocketStream::from_raw_socket(theirs, Role::Client, None).await).await;
    });
    exchange(WebSocket::server(ours), StdRng::seed_from_u64(seed)).await;
    peer.await.unwrap();
}
