//! A layer that lets a request pass or answers in the service's place.

use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use http::{Request, Response};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use super::refuse::refuse;

/// Decides about requests.
pub(crate) trait Check: Clone {
    /// Looks at the request and may add to its extensions.
    ///
    /// # Errors
    /// With what to answer instead.
    fn check<B>(&self, request: &mut Request<B>) -> Result<(), Box<Status>>;
}

/// The answer to whom the server is not there for.
pub(crate) fn refused(message: String) -> Box<Status> {
    Box::new(Refusal::new(ErrorReason::CallerRefused, message).into())
}

/// Puts a check in front of a service.
#[derive(Clone, Debug)]
pub(crate) struct GateLayer<C>(pub(crate) C);

/// A service behind a check.
#[derive(Clone, Debug)]
pub(crate) struct Gate<C, S> {
    check: C,
    inner: S,
}

// === impl GateLayer ===

impl<C: Clone, S> Layer<S> for GateLayer<C> {
    type Service = Gate<C, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Gate {
            check: self.0.clone(),
            inner,
        }
    }
}

// === impl Gate ===

impl<C, S, B> Service<Request<B>> for Gate<C, S>
where
    C: Check,
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<Ready<Result<S::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.check.check(&mut request) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(status) => {
                tracing::debug!(code = ?status.code(), "refused: {}", status.message());
                Either::Left(ready(Ok(refuse(&request, *status))))
            }
        }
    }
}
