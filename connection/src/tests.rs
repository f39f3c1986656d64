use std::{
    future::pending,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::iter;
use http::{Request, Response, uri::Authority};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex},
    time::{Instant, sleep},
};
use tonic::{Status, body::Body};

use super::*;

const EVERY: Duration = Duration::from_secs(10);

/// One end of a stream that counts what was written at a time.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.poll_write(cx, &bytes)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn line(when_idle: bool) -> Line {
    let keepalive = Keepalive {
        every: EVERY,
        patience: EVERY,
        when_idle,
    };
    Line::new(Authority::from_static("peer"), keepalive)
}

fn request() -> Request<Body> {
    asking(Body::new(Full::new(Bytes::from_static(b"asked"))))
}

/// In so many pieces, of which nobody knows which is the last until there is no more.
fn in_pieces<const N: usize>(pieces: [&'static str; N]) -> Request<Body> {
    let frame = |piece| Ok::<_, Status>(Frame::data(Bytes::from_static(str::as_bytes(piece))));
    asking(Body::new(StreamBody::new(iter(pieces.map(frame)))))
}

fn asking(body: Body) -> Request<Body> {
    Request::post("/service/method").body(body).unwrap()
}

/// Answers each call with what it asked.
async fn echo(stream: impl ByteStream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        tokio::spawn(async move {
            assert_eq!(request.uri(), "http://peer/service/method");
            let (mut body, mut asked) = (request.into_body(), Vec::new());
            while let Some(piece) = body.data().await {
                asked.extend(piece.unwrap());
            }
            let mut sending = respond.send_response(Response::new(()), false).unwrap();
            sending.send_data(asked.into(), true).unwrap();
        });
    }
}

/// A stream to one who echoes.
fn to_echo() -> DuplexStream {
    let (ours, theirs) = duplex(1 << 16);
    tokio::spawn(echo(theirs));
    ours
}

/// A stream to one who takes a call and then does as `then` says.
fn to_taker<F: Future<Output = ()> + Send>(then: impl FnOnce() -> F + Send + 'static) -> DuplexStream {
    let (ours, theirs) = duplex(1 << 16);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(theirs).await.unwrap();
        let _taken = connection.accept().await;
        then().await;
    });
    ours
}

async fn opened(stream: impl ByteStream + 'static) -> io::Result<Box<dyn ByteStream>> {
    Ok(Box::new(stream))
}

async fn answered(line: &Line, stream: impl FnOnce() -> DuplexStream) {
    assert_eq!(echoed(line, request(), stream).await, "asked");
}

async fn echoed(line: &Line, request: Request<Body>, stream: impl FnOnce() -> DuplexStream) -> Bytes {
    let response = line.call(request, || opened(stream())).await.unwrap();
    response.into_body().collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn a_call_is_one_write() {
    let line = line(true);
    let writes = Arc::<AtomicUsize>::default();
    let stream = Counted(to_echo(), Arc::clone(&writes));
    line.connect(|| opened(stream)).await.unwrap();
    answered(&line, || unreachable!("there is a connection")).await;
    // By now both have told each other what they can do.
    for _ in 0..10 {
        for request in [request(), in_pieces(["asked"])] {
            let before = writes.load(Ordering::Relaxed);
            assert_eq!(
                echoed(&line, request, || unreachable!("there is a connection")).await,
                "asked"
            );
            assert_eq!(writes.load(Ordering::Relaxed) - before, 1);
        }
    }
    for (pieces, whole) in [(["a", "", "b"], "ab"), (["", "", ""], ""), (["a", "b", "c"], "abc")] {
        assert_eq!(echoed(&line, in_pieces(pieces), || unreachable!()).await, whole);
    }
    assert_eq!(echoed(&line, in_pieces([]), || unreachable!()).await, "");
}

#[tokio::test]
async fn a_connection_that_dies_ends_its_calls_and_the_next_opens_another() {
    let line = line(true);
    let dying = line.call(request(), || opened(to_taker(|| async {}))).await;
    assert!(matches!(dying, Err(LineError::Broken(_))), "{dying:?}");
    answered(&line, to_echo).await;
    answered(&line, || unreachable!("there is a connection")).await;
}

#[tokio::test]
async fn what_can_not_be_opened_is_told_to_all_who_wait_and_tried_by_the_next() {
    let line = line(true);
    let tries = Arc::<AtomicUsize>::default();
    let refused = || {
        let tries = Arc::clone(&tries);
        async move {
            tries.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err(io::Error::from(io::ErrorKind::ConnectionRefused))
        }
    };
    let calls = (0..10).map(|_| line.call(request(), refused));
    for call in futures_util::future::join_all(calls).await {
        let error = call.unwrap_err();
        assert!(matches!(error, LineError::Connect(_)), "{error:?}");
        assert_eq!(innermost(&error), "connection refused");
    }
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    answered(&line, to_echo).await;
}

#[tokio::test(start_paused = true)]
async fn one_who_falls_silent_is_noticed() {
    let begun = Instant::now();
    let silent = line(false).call(request(), || opened(to_taker(pending))).await;
    assert!(matches!(silent, Err(LineError::Broken(_))), "{silent:?}");
    assert_eq!(begun.elapsed().as_secs(), 2 * EVERY.as_secs());
}

#[tokio::test(start_paused = true)]
async fn one_who_is_not_asked_anything_may_be_silent() {
    for when_idle in [false, true] {
        let line = line(when_idle);
        let (ours, theirs) = duplex(1 << 16);
        let (silence, silent) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            // Kept, so that the connection stays open.
            let mut echoing = Box::pin(echo(theirs));
            tokio::select! { () = &mut echoing => {}, _ = silent => pending().await }
        });
        answered(&line, || ours).await;
        silence.send(()).unwrap();
        sleep(EVERY * 10).await;
        let again = AtomicUsize::new(0);
        let reopened = || {
            again.fetch_add(1, Ordering::Relaxed);
            opened(to_echo())
        };
        // Where it was not looked after it is found out by the call, and another one helps.
        let answer = line.call(request(), reopened).await;
        assert_eq!(
            (answer.is_ok(), again.load(Ordering::Relaxed)),
            (when_idle, usize::from(when_idle))
        );
    }
}

/// Has nothing to say until the peer has answered, which takes no more than its headers.
struct Late;

impl http_body::Body for Late {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        std::thread::sleep(Duration::from_millis(100));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"late")))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_answers_before_it_was_asked_all_is_heard() {
    let (ours, theirs) = duplex(1 << 16);
    tokio::spawn(async move {
        let mut connection = h2::server::handshake(theirs).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let refusal = Response::builder().status(401).body(()).unwrap();
            respond.send_response(refusal, true).unwrap();
            drop(request);
        }
    });
    // By a worker, so that the connection's own task has the other one.
    let called = tokio::spawn(async move { line(true).call(asking(Body::new(Late)), || opened(ours)).await });
    assert_eq!(called.await.unwrap().unwrap().status(), 401);
}

/// Asks for as much as is said, and gives how many writes the answers took, which all came whole.
async fn writes_of_answers(length: usize) -> Vec<usize> {
    let line = line(true);
    let (ours, theirs) = duplex(1 << 20);
    let writes = Arc::<AtomicUsize>::default();
    let theirs = Corked::new(Counted(theirs, Arc::clone(&writes)));
    tokio::spawn(async move {
        let mut builder = h2::server::Builder::new();
        let mut connection = builder.max_frame_size(1 << 20).handshake(theirs).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            let mut sending = respond.send_response(Response::new(()), false).unwrap();
            sending.send_data(Bytes::from(vec![7; length]), false).unwrap();
            let trailers = http::HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("0"))]);
            sending.send_trailers(trailers).unwrap();
        }
    });
    let mut counts = Vec::new();
    let mut ours = Some(ours);
    for _ in 0..5 {
        let before = writes.load(Ordering::Relaxed);
        let response = line.call(request(), || opened(ours.take().unwrap())).await.unwrap();
        let whole = response.into_body().collect().await.unwrap();
        assert!(whole.trailers().is_some());
        assert!(whole.to_bytes() == vec![7; length]);
        counts.push(writes.load(Ordering::Relaxed) - before);
    }
    // The first one also says what they can do.
    counts.split_off(1)
}

#[tokio::test]
async fn an_answer_is_one_write_and_a_large_one_is_not_copied() {
    for length in [0, 1, 255, 257, 4096, 15_000] {
        assert_eq!(writes_of_answers(length).await, [1; 4], "{length}");
    }
    assert_eq!(writes_of_answers(60_000).await, [2; 4]);
}

#[tokio::test]
async fn what_is_held_is_written_before_the_end_and_in_order_to_one_who_takes_little() {
    let (near, mut far) = duplex(7);
    far.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..3]).await.unwrap();
    let mut corked = Corked::new(near);
    let reading = tokio::spawn(async move {
        far.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[3..]).await.unwrap();
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.unwrap();
        seen
    });
    corked.read_exact(&mut [0; 24]).await.unwrap();
    let mut sent = Vec::new();
    for length in [1, 100, 5_000, 12_000, 40_000, 3] {
        let part: Vec<u8> = (0..length).map(|n: u32| (n % 251) as u8).collect();
        corked.write_all(&part).await.unwrap();
        corked.flush().await.unwrap();
        sent.extend(part);
    }
    corked.shutdown().await.unwrap();
    assert!(reading.await.unwrap() == sent);
}

/// HTTP/1.1 does not read while it writes: what it wrote would stay.
#[tokio::test]
async fn nothing_is_held_of_what_is_not_http_2() {
    let (near, mut far) = duplex(1 << 10);
    let mut corked = Corked::new(near);
    for said in [&b"PRI"[..], b" * HTTP/1.1\r\n"] {
        far.write_all(said).await.unwrap();
        corked.read_exact(&mut vec![0; said.len()]).await.unwrap();
        corked.write_all(b"answer").await.unwrap();
        let mut seen = [0; 6];
        far.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"answer");
    }
}

/// Or one who comes again and again, with less time than it takes, would never have a connection.
#[tokio::test(start_paused = true)]
async fn a_connection_is_made_also_if_nobody_waits_for_it() {
    let line = line(false);
    let slow = || async {
        sleep(Duration::from_secs(5)).await;
        opened(to_echo()).await
    };
    let left = tokio::time::timeout(Duration::from_secs(1), line.call(request(), slow)).await;
    assert!(left.is_err());
    answered(&line, || unreachable!("it is being made")).await;
}

#[tokio::test(start_paused = true)]
async fn one_who_is_heard_is_there_however_long_a_pong_takes() {
    let (ours, mut theirs) = duplex(1 << 16);
    tokio::spawn(async move {
        // As they are on the wire, because no server that we have leaves a ping without an answer.
        let frame = |kind, flags, stream, payload: &[u8]| {
            [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
        };
        theirs.write_all(&frame(4, 0, 0, b"")).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        theirs.write_all(&frame(1, 4, 1, &[0x88])).await.unwrap();
        for n in 0..20 {
            sleep(EVERY / 2).await;
            theirs.write_all(&frame(0, u8::from(n == 19), 1, b"x")).await.unwrap();
        }
        pending::<()>().await;
    });
    let response = line(false).call(request(), || opened(ours)).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 20);
}
