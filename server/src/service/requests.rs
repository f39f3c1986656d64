//! A caller's stream of requests on its way to a runtime.
//!
//! It is read by the connection to the runtime, in a task of the library's, while the answers are read by the caller's
//! connection. Two things need care. When the caller's side breaks, the runtime's must break too: ended in order, half an
//! upload would look whole. And when the answers are over, the requests must be let go, also if the caller says nothing
//! any more: the library would read them for ever.

use std::{
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use prost::Message;
use sandgate_errors::Refusal;
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tonic::{
    Status, Streaming,
    codec::{self, BufferSettings, EncodeBuf, Encoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::convert::{Call, IntoRuntime};

/// The requests, as the runtime gets them.
pub(super) struct Requests<R: IntoRuntime> {
    first: Option<R::Runtime>,
    rest: Streaming<R>,
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

/// What stands in the place of a request when there will be no more: the stream to the runtime is reset.
#[derive(Debug)]
pub(super) struct Cut;

/// Encodes requests, and fails at a cut, which is the library's way to reset a stream.
pub(super) struct Codec<T, U>(PhantomData<(T, U)>);

/// See [`Codec`].
pub(super) struct CutEncoder<T>(ProstEncoder<T>);

// === impl Requests ===

impl<R: Call> Requests<R> {
    pub(super) fn new(first: R::Runtime, rest: Streaming<R>) -> (Self, Outlet) {
        let (broken_in, broken_out) = oneshot::channel();
        let (wanted_in, wanted_out) = oneshot::channel();
        let requests = Self {
            first: Some(first),
            rest,
            broken: Some(broken_in),
            wanted: wanted_out,
        };
        let outlet = Outlet {
            broken: Some(broken_out),
            _wanted: wanted_in,
        };
        (requests, outlet)
    }
}

// Nothing in it is ever pinned.
impl<R: IntoRuntime> Unpin for Requests<R> {}

impl<R: Call> Stream for Requests<R> {
    type Item = Result<R::Runtime, Cut>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if self.broken.is_none() || Pin::new(&mut self.wanted).poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Cut)));
        }
        let Some(request) = ready!(Pin::new(&mut self.rest).poll_next(cx)) else {
            return Poll::Ready(None);
        };
        let converted = request.and_then(|request| request.into_runtime().map_err(|error| Refusal::from(error).into()));
        Poll::Ready(Some(converted.map_err(|status| {
            // Nobody may be left to be told.
            _ = self.broken.take().map(|broken| broken.send(status));
            Cut
        })))
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

// === impl Codec ===

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = Result<T, Cut>;
    type Decode = U;
    type Encoder = CutEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        CutEncoder(ProstEncoder::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl<T: Message> Encoder for CutEncoder<T> {
    type Item = Result<T, Cut>;
    type Error = Status;

    fn encode(&mut self, item: Self::Item, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        match item {
            Ok(message) => self.0.encode(message, buf),
            Err(Cut) => Err(Status::cancelled("the caller's stream was cut")),
        }
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}
