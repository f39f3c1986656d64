//! A name for each request: in every log line about it, in its answer, and in its error. Who reports a failure can name
//! it, and who reads the log can find it.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use http::{HeaderValue, Request, Response};
use tower::{Layer, Service};
use tracing::{Instrument as _, error_span};

use crate::listen::Peer;

/// The header, and the gRPC metadata, that carries it.
pub(crate) const HEADER: &str = "x-request-id";

const MAX_LEN: usize = 64;

/// A request's id. It is in the extensions of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(HeaderValue);

/// Gives each request an id, a span around whatever is done for it, and the id to its answer.
#[derive(Clone, Debug)]
pub(crate) struct RequestIdLayer(Arc<Numbers>);

/// A service whose requests have ids.
#[derive(Clone, Debug)]
pub(crate) struct WithRequestId<S> {
    inner: S,
    numbers: Arc<Numbers>,
}

/// Ids that no other request has: one random number for this server, and a count.
#[derive(Debug)]
struct Numbers {
    server: u32,
    count: AtomicU64,
}

// === impl RequestId ===

impl RequestId {
    /// The caller's own, if it is one to be written to logs as it is.
    fn of_caller<B>(request: &Request<B>) -> Option<Self> {
        let value = request.headers().get(HEADER)?;
        let bytes = value.as_bytes();
        let good = (1..=MAX_LEN).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
        good.then(|| Self::new(value.clone()))
    }

    fn new(mut value: HeaderValue) -> Self {
        // No secret, but none that comes again either: it must not take the place of others in the table of headers.
        value.set_sensitive(true);
        Self(value)
    }

    /// The id as metadata.
    #[must_use]
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().unwrap_or_default())
    }
}

// === impl RequestIdLayer ===

impl RequestIdLayer {
    pub(crate) fn new() -> Self {
        // The standard library's hasher is seeded at random.
        let bytes = RandomState::new().hash_one(HEADER).to_le_bytes();
        Self(Arc::new(Numbers {
            server: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            count: AtomicU64::new(1),
        }))
    }
}

impl<S> Layer<S> for RequestIdLayer {
    type Service = WithRequestId<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WithRequestId {
            inner,
            numbers: self.0.clone(),
        }
    }
}

// === impl Numbers ===

impl Numbers {
    fn next(&self) -> RequestId {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}-{count:06x}", self.server);
        RequestId::new(HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("unknown")))
    }
}

// === impl WithRequestId ===

impl<S, B, R> Service<Request<B>> for WithRequestId<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let id = RequestId::of_caller(&request).unwrap_or_else(|| self.numbers.next());
        // Of the highest level, so that no filter takes the id away from the lines that it lets through.
        let peer = match request.extensions().get() {
            Some(Peer::Tcp { remote, .. }) => Some(tracing::field::display(remote)),
            _ => None,
        };
        let span = error_span!("request", id = %id, rpc = request.uri().path(), peer);
        request.extensions_mut().insert(id.clone());
        let answer = span.in_scope(|| self.inner.call(request));
        let answer = async move {
            let mut answer = answer.await?;
            answer.headers_mut().insert(HEADER, id.header());
            Ok(answer)
        };
        Box::pin(answer.instrument(span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_caller(value: &str) -> Option<RequestId> {
        let request = Request::builder().header(HEADER, value).body(()).unwrap();
        RequestId::of_caller(&request)
    }

    #[test]
    fn a_callers_id_is_taken_over_if_it_is_fit_for_logs() {
        for good in [
            "a",
            "0af7651916cd43dd8448eb211c80319c",
            "job/42:step-3",
            &"x".repeat(64),
        ] {
            assert_eq!(from_caller(good).unwrap().to_string(), good);
        }
        for bad in ["", "two words", "tab\tbed", "ä", &"x".repeat(65)] {
            assert_eq!(from_caller(bad), None, "{bad}");
        }
    }

    #[test]
    fn made_up_ids_differ() {
        let (one, other) = (RequestIdLayer::new(), RequestIdLayer::new());
        let ids = [one.0.next(), one.0.next(), other.0.next()].map(|id| id.to_string());
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
        assert_eq!(ids[0].len(), 15, "{ids:?}");
    }
}
