//! How calls end: with the request's id, in time when the server stops, and in the access log.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use futures_util::future::TryFutureExt as _;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Frame, SizeHint};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;
use tonic::{Code, Status, body::Body};
use tower::{Layer, Service};
use tracing::Span;

use super::request_id::{HEADER, RequestId};
use crate::stopping::Stopping;

/// Looks after answers.
#[derive(Clone, Debug)]
pub(crate) struct AnswerLayer(pub(crate) Stopping);

/// A service whose answers are looked after.
#[derive(Clone, Debug)]
pub(crate) struct Answers<S> {
    inner: S,
    stopping: Stopping,
}

/// An answer on its way out.
struct AnswerBody {
    inner: Body,
    id: Option<HeaderValue>,
    stopping: Stopping,
    /// Ready when a stream must end. Unary answers never need it.
    overdue: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Frames with data so far. A unary answer has one.
    frames: u64,
    log: Access,
}

/// The line of the access log, written when the answer is gone.
struct Access {
    span: Span,
    begun: Instant,
    code: Option<Code>,
}

const GRPC_STATUS: &str = "grpc-status";

// === impl AnswerLayer ===

impl<S> Layer<S> for AnswerLayer {
    type Service = Answers<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Answers {
            inner,
            stopping: self.0.clone(),
        }
    }
}

// === impl Answers ===

impl<S, B> Service<Request<B>> for Answers<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let id = request.extensions().get::<RequestId>().map(RequestId::header);
        let stopping = self.stopping.clone();
        // It is dropped, and so written, also when the caller goes away before there is an answer.
        let mut log = Access {
            span: Span::current(),
            begun: Instant::now(),
            code: None,
        };
        let answer = self.inner.call(request).map_ok(move |answer| {
            log.note(answer.headers());
            answer.map(|inner| {
                Body::new(AnswerBody {
                    inner,
                    id,
                    stopping,
                    overdue: None,
                    frames: 0,
                    log,
                })
            })
        });
        Box::pin(answer)
    }
}

// === impl AnswerBody ===

impl AnswerBody {
    /// Ends the stream in the service's place. Frames are whole messages, so that nothing is cut in two.
    fn stop(&mut self) -> Frame<Bytes> {
        self.inner = Body::empty();
        let refusal = Refusal::new(
            ErrorReason::Stopping,
            "the server is stopping: connect again and resume",
        );
        let mut trailers = HeaderMap::new();
        // Nothing in it is unfit for a header.
        _ = Status::from(refusal).add_header(&mut trailers);
        self.finish(trailers)
    }

    fn finish(&mut self, mut trailers: HeaderMap) -> Frame<Bytes> {
        self.log.note(&trailers);
        if let Some(id) = &self.id {
            trailers.insert(HEADER, id.clone());
        }
        Frame::trailers(trailers)
    }

    fn pass_on(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_trailers() {
            Ok(trailers) => self.finish(trailers),
            Err(data) => {
                self.frames += 1;
                data
            }
        }
    }

    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        let stopping = &self.stopping;
        let overdue = self.overdue.get_or_insert_with(|| {
            let stopping = stopping.clone();
            Box::pin(async move { stopping.streams_overdue().await })
        });
        overdue.as_mut().poll(cx).is_ready()
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let span = this.log.span.clone();
        let _within = span.enter();
        if this.frames > 1 && !this.inner.is_end_stream() && this.stopping.is_overdue() {
            return Poll::Ready(Some(Ok(this.stop())));
        }
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(this.pass_on(frame)))),
            Poll::Ready(end) => Poll::Ready(end),
            // What is not there yet is a stream's.
            Poll::Pending if this.is_overdue(cx) => Poll::Ready(Some(Ok(this.stop()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

// === impl Access ===

impl Access {
    fn note(&mut self, headers: &HeaderMap) {
        let code = headers.get(GRPC_STATUS);
        self.code = code.map(|code| Code::from_bytes(code.as_bytes())).or(self.code);
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let _within = self.span.enter();
        let elapsed_ms = self.begun.elapsed().as_secs_f64() * 1e3;
        match self.code {
            Some(code) => tracing::debug!(?code, elapsed_ms, "answered"),
            None => tracing::debug!(elapsed_ms, "left by its caller"),
        }
    }
}
