//! One HTTP/2 connection.

use std::{
    future::pending,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::{Ping, Reason, RecvStream, SendStream, client};
use http::{Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use tokio::sync::{Mutex, oneshot};
use tonic::{Status, body::Body};

use crate::{
    keepalive::{Keepalive, Traffic, Underway},
    kept::{ByteStream, Spoken},
};

/// A connection. It is closed when this and all of its calls are gone.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    sender: client::SendRequest<Bytes>,
    traffic: Arc<Traffic>,
}

/// The answers to one call.
struct Answers {
    stream: RecvStream,
    has_data: bool,
    /// Dropped with this, it ends the request too.
    _wanted: Option<oneshot::Sender<()>>,
    underway: Underway,
}

// As on every listener of ours: one stopped stream must not stop the others. See the server's `serve`.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
// A message of 64 KiB, with what is around it, in one frame instead of five.
const FRAME: u32 = 128 << 10;
/// What a stream may have buffered here beyond what the peer takes.
const SEND_BUFFER: usize = 1 << 20;
/// Streams that were cancelled, and of which late frames are no fault.
const MANY: usize = 100_000;

// === impl Connection ===

impl Spoken for Connection {
    type Error = h2::Error;

    async fn begin(stream: Box<dyn ByteStream>, keepalive: Keepalive) -> Result<Self, h2::Error> {
        let (sender, connection) = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_send_buffer_size(SEND_BUFFER)
            // A server speaks for many callers, who may all leave at once.
            .max_concurrent_reset_streams(MANY)
            .max_local_error_reset_streams(None)
            .enable_push(false)
            .handshake(stream)
            .await?;
        let traffic = Arc::<Traffic>::default();
        tokio::spawn(drive(connection, keepalive, Arc::clone(&traffic)));
        Ok(Self { sender, traffic })
    }

    async fn ready(&self) -> Option<Self> {
        Some(Self {
            sender: self.sender.clone().ready().await.ok()?,
            traffic: Arc::clone(&self.traffic),
        })
    }
}

impl Connection {
    /// Makes a call, and waits for the beginning of the answer.
    pub(crate) async fn call(mut self, request: Request<Body>) -> Result<Response<Body>, h2::Error> {
        let underway = Underway::begin(self.traffic);
        let (head, body) = request.into_parts();
        let is_whole = body.is_end_stream();
        let (response, stream) = self.sender.send_request(Request::from_parts(head, ()), is_whole)?;
        let wanted = if is_whole { None } else { send(stream, body) };
        let answer = |stream| {
            Body::new(Answers {
                stream,
                has_data: true,
                _wanted: wanted,
                underway,
            })
        };
        Ok(response.await?.map(answer))
    }
}

/// Does the work of a connection until its end, which is also when nothing answers any more.
async fn drive(mut connection: client::Connection<Box<dyn ByteStream>>, keepalive: Keepalive, traffic: Arc<Traffic>) {
    let pings = connection.ping_pong().map(Mutex::new);
    let silent = async {
        let Some(pings) = &pings else { return pending().await };
        let ask = || async { pings.lock().await.ping(Ping::opaque()).await.is_ok() };
        keepalive.silence(&traffic, ask).await;
    };
    // Dropped, it ends what is still open with an error.
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection broke");
            }
        }
        () = silent => tracing::debug!("a connection is silent"),
    }
}

/// Sends what there is of a request now, with its headers. If there is more, a task sends that for as long as what this gives
/// is held.
fn send(mut stream: SendStream<Bytes>, mut body: Body) -> Option<oneshot::Sender<()>> {
    let mut next = body.frame().now_or_never();
    let mut data = Bytes::new();
    if let Some(Some(Ok(frame))) = next {
        // Trailers say nothing in requests.
        data = frame.into_data().unwrap_or_default();
        // Whether that was all is often only known when more is asked for.
        next = match body.is_end_stream() {
            true => Some(None),
            false => body.frame().now_or_never(),
        };
    }
    let is_whole = matches!(next, Some(None));
    if is_whole || !data.is_empty() {
        // A peer that answers, or refuses, by the headers alone may have done so by now. What it said is told.
        stream.send_data(data, is_whole).ok()?;
    }
    if is_whole {
        return None;
    }
    let next = next.flatten();
    if let Some(Err(_)) = next {
        stream.send_reset(Reason::CANCEL);
        return None;
    }
    let (wanted, unwanted) = oneshot::channel();
    tokio::spawn(async move {
        let is_sent = tokio::select! {
            biased;
            _ = unwanted => false,
            () = pump(&mut stream, next, body) => true,
        };
        if !is_sent {
            // Whoever asked has left, or has the whole answer.
            stream.send_reset(Reason::CANCEL);
        }
    });
    Some(wanted)
}

/// Sends the rest of a request as it comes, and as the peer takes it.
async fn pump(stream: &mut SendStream<Bytes>, first: Option<Result<Frame<Bytes>, Status>>, mut body: Body) {
    let mut first = first;
    loop {
        let next = async {
            match first.take() {
                None => body.frame().await,
                first => first,
            }
        };
        let frame = tokio::select! {
            biased;
            // The peer wants no more of it.
            _ = std::future::poll_fn(|cx| stream.poll_reset(cx)) => return,
            frame = next => frame,
        };
        let sent = match frame {
            None => {
                // The stream may be over already.
                _ = stream.send_data(Bytes::new(), true);
                return;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => send_when_taken(stream, data).await,
                // Trailers say nothing in requests.
                Err(_) => Some(()),
            },
            // Ended in order, half a request would look whole.
            Some(Err(_)) => return stream.send_reset(Reason::CANCEL),
        };
        if sent.is_none() {
            return;
        }
    }
}

/// `None`: the stream is over.
async fn send_when_taken(stream: &mut SendStream<Bytes>, data: Bytes) -> Option<()> {
    stream.reserve_capacity(1);
    while stream.capacity() == 0 {
        std::future::poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
    }
    stream.send_data(data, false).ok()
}

impl http_body::Body for Answers {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if self.has_data {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.underway.hear();
                    // It can only fail for more than there was.
                    _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(at_end(error)),
                None => self.has_data = false,
            }
        }
        Poll::Ready(match ready!(self.stream.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => at_end(error),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }
}

/// A stream that was answered before its request was read is reset in peace.
fn at_end(error: h2::Error) -> Option<Result<Frame<Bytes>, h2::Error>> {
    (error.reason() != Some(Reason::NO_ERROR)).then_some(Err(error))
}
