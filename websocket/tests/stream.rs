//! Bytes that go in come out, whatever happens on the way.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{io, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode};
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use sandgate_websocket::{PATH, Refused, WebSocket, client};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split},
    time::timeout,
};

const LONG: Duration = Duration::from_secs(60);

/// Answers the upgrade as a server would, by hand, and gives both ends.
async fn pair(buffer: usize) -> (WebSocket<DuplexStream>, WebSocket<DuplexStream>) {
    let (ours, mut theirs) = duplex(buffer);
    let serving = tokio::spawn(async move {
        let request = read_request(&mut theirs).await;
        let answer = sandgate_websocket::answer(&request).unwrap();
        theirs.write_all(&head(&answer)).await.unwrap();
        WebSocket::server(theirs)
    });
    let client = client(ours, "sandbox:8888", PATH, &HeaderMap::new()).await.unwrap();
    (client, serving.await.unwrap())
}

async fn read_request(io: &mut DuplexStream) -> HeaderMap {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        text.push(io.read_u8().await.unwrap());
    }
    let text = String::from_utf8(text).unwrap();
    let mut lines = text.split("\r\n");
    assert_eq!(lines.next(), Some("GET /sandgate/v1/stream HTTP/1.1"));
    let header = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())
    };
    lines.filter(|line| !line.is_empty()).map(header).collect()
}

fn head(headers: &HeaderMap) -> Vec<u8> {
    let mut head = b"HTTP/1.1 101 Switching Protocols\r\n".to_vec();
    for (name, value) in headers {
        head.extend_from_slice(format!("{name}: {}\r\n", value.to_str().unwrap()).as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn random_bytes(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Writes bytes in pieces of any size, flushing now and then, and ends.
async fn write_all(mut io: impl AsyncWrite + Unpin, bytes: Vec<u8>, mut random: StdRng) {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let most = [1, 100, 1_000, 70_000, 200_000][random.random_range(0..5)];
        let (piece, more) = rest.split_at(random.random_range(1..=most).min(rest.len()));
        io.write_all(piece).await.unwrap();
        if random.random_bool(0.3) {
            io.flush().await.unwrap();
        }
        rest = more;
    }
    io.shutdown().await.unwrap();
}

/// Reads to the end, in pieces of any size.
async fn read_all(mut io: impl AsyncRead + Unpin, mut random: StdRng) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut piece = vec![0; random.random_range(1..100_000)];
        match io.read(&mut piece).await? {
            0 => return Ok(bytes),
            length => bytes.extend_from_slice(&piece[..length]),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ways_at_once_in_any_pieces() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    for round in 0..12 {
        let mut random = StdRng::seed_from_u64(seed + round);
        let (client, server) = pair(random.random_range(64..300_000)).await;
        let (up, down) = (
            random_bytes(&mut random, 2_000_000),
            random_bytes(&mut random, 2_000_000),
        );
        let ((client_in, client_out), (server_in, server_out)) = (split(client), split(server));
        let mut fork = || StdRng::seed_from_u64(random.random());
        let work = [
            tokio::spawn(write_all(client_out, up.clone(), fork())),
            tokio::spawn(write_all(server_out, down.clone(), fork())),
        ];
        let reads = [
            tokio::spawn(read_all(server_in, fork())),
            tokio::spawn(read_all(client_in, fork())),
        ];
        let [at_server, at_client] = reads.map(|read| async { timeout(LONG, read).await.unwrap().unwrap().unwrap() });
        assert!(at_server.await == up && at_client.await == down, "round {round}");
        for work in work {
            work.await.unwrap();
        }
    }
}

#[tokio::test]
async fn one_direction_may_end_before_the_other() {
    let (mut client, mut server) = pair(1_000).await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "question");
    let answer = vec![7; 500_000];
    let sent = answer.clone();
    let writing = tokio::spawn(async move {
        server.write_all(&sent).await.unwrap();
        server.shutdown().await.unwrap();
        server
    });
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == answer);
    writing.await.unwrap();
    assert_eq!(
        client.write(b"more").await.unwrap_err().kind(),
        io::ErrorKind::BrokenPipe
    );
}

/// A server whose client is bytes by hand.
fn raw() -> (DuplexStream, WebSocket<DuplexStream>) {
    let (raw, server) = duplex(1 << 20);
    (raw, WebSocket::server(server))
}

/// A masked frame, with a mask that changes nothing.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | length as u8),
        length => {
            frame.push(0xfe);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

#[tokio::test]
async fn pings_are_answered_between_frames() {
    let (mut raw, mut server) = raw();
    let sent = [
        frame(0x02, b"one "),
        frame(0x89, b"are you there?"),
        frame(0x80, b"message"),
        frame(0x8a, b"a pong that nobody asked for"),
        frame(0x82, b""),
        frame(0x88, &1000_u16.to_be_bytes()),
    ];
    raw.write_all(&sent.concat()).await.unwrap();
    // Written and not flushed: it goes before the pong.
    server.write_all(b"busy").await.unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "one message");
    let mut answered = [0; 22];
    raw.read_exact(&mut answered).await.unwrap();
    assert_eq!(&answered, b"\x82\x04busy\x8a\x0eare you there?");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_in_the_middle_of_a_busy_stream_lose_nothing() {
    // So small that the writer waits for the socket nearly always.
    let (raw, server) = duplex(50);
    let (mut server_in, mut server_out) = split(WebSocket::server(server));
    let (mut raw_in, mut raw_out) = split(raw);
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    let sent = bytes.clone();
    let writing = tokio::spawn(async move {
        for piece in sent.chunks(100) {
            server_out.write_all(piece).await.unwrap();
            server_out.flush().await.unwrap();
        }
        server_out.shutdown().await.unwrap();
    });
    let pinging = tokio::spawn(async move {
        for _ in 0..2_000 {
            raw_out.write_all(&frame(0x89, b"?")).await.unwrap();
        }
        raw_out.write_all(&frame(0x88, b"")).await.unwrap();
        raw_out
    });
    let reading = tokio::spawn(async move { server_in.read_u8().await.unwrap_err().kind() });
    let (mut received, mut pongs) = (Vec::new(), 0);
    let all = async {
        loop {
            let first = raw_in.read_u8().await.unwrap();
            let mut payload = vec![0; raw_in.read_u8().await.unwrap().into()];
            raw_in.read_exact(&mut payload).await.unwrap();
            match first {
                0x82 => received.extend_from_slice(&payload),
                0x8a => pongs += 1,
                0x88 => return,
                other => unreachable!("{other:x}"),
            }
        }
    };
    timeout(LONG, all).await.unwrap();
    assert!(received == bytes);
    assert!(pongs > 0);
    assert_eq!(
        reading.await.unwrap(),
        io::ErrorKind::UnexpectedEof,
        "read_u8 at the end"
    );
    writing.await.unwrap();
    pinging.await.unwrap();
}

#[tokio::test]
async fn what_is_cut_is_no_end() {
    let whole = frame(0x82, b"half a message");
    for cut in 0..=whole.len() {
        let (mut raw, mut server) = raw();
        raw.write_all(&whole[..cut]).await.unwrap();
        drop(raw);
        let error = server.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut}");
    }
}

#[tokio::test]
async fn what_breaks_the_rules_is_refused() {
    let unmasked = vec![0x82, 1, 0];
    let oversize = vec![0x82, 0xff, 0, 0, 0, 0, 0, 0x10, 0, 1, 0, 0, 0, 0];
    let continued = frame(0x80, b"of nothing");
    let begun_twice = [frame(0x02, b"a"), frame(0x82, b"b")].concat();
    let failed = frame(0x88, &1011_u16.to_be_bytes());
    for (bytes, kind) in [
        (unmasked, io::ErrorKind::InvalidData),
        (oversize, io::ErrorKind::InvalidData),
        (continued, io::ErrorKind::InvalidData),
        (begun_twice, io::ErrorKind::InvalidData),
        (frame(0x81, b"text"), io::ErrorKind::InvalidData),
        (frame(0x88, b"1"), io::ErrorKind::InvalidData),
        (failed, io::ErrorKind::ConnectionReset),
    ] {
        let (mut raw, mut server) = raw();
        raw.write_all(&bytes).await.unwrap();
        let error = server.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{bytes:x?}");
    }
}

#[tokio::test]
async fn random_bytes_are_errors_and_no_more() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..2_000 {
        let (mut raw, mut server) = raw();
        let length = random.random_range(0..500);
        raw.write_all(&random_bytes(&mut random, length)).await.unwrap();
        drop(raw);
        let mut out = Vec::new();
        let _ = server.read_to_end(&mut out).await;
        assert!(out.len() <= length);
    }
}

#[tokio::test]
async fn a_refused_upgrade_says_what_was_answered() {
    let asked = async |answer: &'static [u8]| {
        let (ours, mut theirs) = duplex(4_096);
        tokio::spawn(async move {
            read_request(&mut theirs).await;
            theirs.write_all(answer).await.unwrap();
        });
        client(ours, "sandbox", PATH, &HeaderMap::new()).await.unwrap_err()
    };
    let error = asked(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 7\r\n\r\nno pod\n").await;
    let refused: &Refused = error.get_ref().unwrap().downcast_ref().unwrap();
    assert_eq!(refused.status, StatusCode::BAD_GATEWAY);
    assert_eq!(refused.text, "no pod\n");
    // An answer to somebody else's question.
    let error = asked(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: sandgate.v1\r\n\r\n",
    )
    .await;
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(asked(b"HTTP/1.1 10").await.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(asked(b"SSH-2.0-x\r\n\r\n").await.kind(), io::ErrorKind::InvalidData);
}
