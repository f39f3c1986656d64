//! A caller's stream of requests on its way to a runtime.
//!
//! It is read by the connection to the runtime, in a task of the library's, while the answers are read by the caller's
//! connection. Two things need care. When the caller's side breaks, the runtime's must break too: ended in order, half an
//! upload would look whole. And when the answers are over, the requests must be let go, also if the caller says nothing
//! any more: the library would read them for ever.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::Frame;
use tokio::sync::oneshot;
use tonic::{Status, body::Body};

use super::messages::Messages;

/// The requests, as the runtime gets them: the first made anew, the others as they came.
pub(super) struct Requests {
    /// To be sent before anything that is read.
    ready: Option<Bytes>,
    /// `None`: the caller's side has ended.
    rest: Option<Body>,
    messages: Messages,
    /// Tells why the caller's side broke. Used up: it did.
    broken: Option<oneshot::Sender<Status>>,
    /// Closed when the answers are over.
    wanted: oneshot::Receiver<()>,
}

/// The other end: held by whoever waits for the answers.
#[derive(Debug)]
pub(super) struct Outlet {
    broken: Option<oneshot::Receiver<Status>>,
    _wanted: oneshot::Sender<()>,
}

// === impl Requests ===

impl Requests {
    /// `messages` holds what came after the first one.
    pub(super) fn new(first: Bytes, messages: Messages, rest: Body) -> (Self, Outlet) {
        let (broken_in, broken_out) = oneshot::channel();
        let (wanted_in, wanted_out) = oneshot::channel();
        let requests = Self {
            ready: Some(first),
            rest: Some(rest),
            messages,
            broken: Some(broken_in),
            wanted: wanted_out,
        };
        let outlet = Outlet {
            broken: Some(broken_out),
            _wanted: wanted_in,
        };
        (requests, outlet)
    }

    /// An error of this body resets the stream to the runtime.
    fn cut(&mut self, why: Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        // Nobody may be left to be told.
        _ = self.broken.take().map(|broken| broken.send(why));
        Poll::Ready(Some(Err(Status::cancelled("the caller's stream was cut"))))
    }
}

impl http_body::Body for Requests {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(first) = this.ready.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if this.broken.is_none() || Pin::new(&mut this.wanted).poll(cx).is_ready() {
            return this.cut(Status::cancelled("the answers are over"));
        }
        loop {
            if let Some(piece) = this.messages.pop() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let Some(rest) = &mut this.rest else {
                return Poll::Ready(None);
            };
            match ready!(Pin::new(rest).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers say nothing in requests.
                    let Ok(data) = frame.into_data() else { continue };
                    if let Err(status) = this.messages.push(data) {
                        return this.cut(status);
                    }
                }
                Some(Err(status)) => return this.cut(status),
                None if this.messages.is_whole() => this.rest = None,
                None => return this.cut(Status::internal("the stream ended within a message")),
            }
        }
    }
}

// === impl Outlet ===

impl Outlet {
    /// Waits until the caller's side breaks, and says why.
    pub(super) async fn failure(&mut self) -> Status {
        std::future::poll_fn(|cx| self.poll_failure(cx)).await
    }

    /// The same for streams.
    pub(super) fn poll_failure(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        let Some(broken) = &mut self.broken else {
            return Poll::Pending;
        };
        if let Ok(status) = ready!(Pin::new(broken).poll(cx)) {
            return Poll::Ready(status);
        }
        // It ended in order.
        self.broken = None;
        Poll::Pending
    }

    /// Why the caller's side broke, if it did. A failure at the runtime then only follows from that.
    pub(super) fn failed_first(&mut self) -> Option<Status> {
        self.broken.as_mut()?.try_recv().ok()
    }
}
