//! No call from a network without a token.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use futures_util::future::Either;
use http::{HeaderMap, Request, Response, header::AUTHORIZATION};
use sandgate_auth::{Expected, Scope, TokenError, Verifier};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;
use tonic::{Status, body::Body, codegen::Service, server::NamedService};

/// Who may call.
#[derive(Debug)]
pub(crate) struct Gate {
    verifier: Verifier,
    expected: Expected,
}

/// A service behind a [`Gate`]. What is refused does not reach it, so it does not count as a call.
#[derive(Debug, Clone)]
pub(crate) struct Gated<S> {
    inner: S,
    gate: Arc<Gate>,
}

const SCHEME: &str = "bearer";
const HELLO: &str = "/sandgate.runtime.v1.RuntimeService/Hello";

// === impl Gate ===

impl Gate {
    pub(crate) fn new(verifier: Verifier, expected: Expected) -> Self {
        Self { verifier, expected }
    }

    /// Whether a call to a path may be made with these headers.
    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        let token =
            bearer(headers).ok_or_else(|| unauthenticated("a call needs one token: authorization: Bearer …"))?;
        let verified = self.verifier.verify(token, &self.expected, SystemTime::now());
        match verified.map_err(refusal)?.scope {
            Scope::Runtime => Ok(()),
            Scope::Hello if path == HELLO => Ok(()),
            Scope::Hello => Err(unauthenticated("the token is good for Hello only")),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token)
}

fn unauthenticated(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorReason::Unauthenticated, message)
}

/// A token of the server's for this sandbox, but for another start of it: then the server knows less than we do.
fn refusal(error: TokenError) -> Refusal {
    match error {
        TokenError::PodUid | TokenError::Incarnation => Refusal::new(
            ErrorReason::SandboxRestarted,
            format!("{error}: it was restarted; what ran before is gone and was not run again"),
        ),
        _ => unauthenticated(error.to_string()),
    }
}

// === impl Gated ===

impl<S> Gated<S> {
    pub(crate) fn new(inner: S, gate: Gate) -> Self {
        Self {
            inner,
            gate: Arc::new(gate),
        }
    }
}

impl<S, B> Service<Request<B>> for Gated<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.gate.check(request.uri().path(), request.headers()) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(refusal) => {
                tracing::debug!(%refusal, path = request.uri().path(), "a call was refused");
                Either::Right(ready(Ok(Status::from(refusal).into_http())))
            }
        }
    }
}

impl<S: NamedService> NamedService for Gated<S> {
    const NAME: &'static str = S::NAME;
}
