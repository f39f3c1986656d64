//! A short way for calls that no web page makes: they need neither CORS, nor gRPC-Web, nor a table of services, which
//! together take as long as passing a call on.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use futures_util::future::Either;
use http::{HeaderMap, Request, Response, Version, header};
use tonic::body::Body;
use tower::Service;

/// Two ways to the same service.
#[derive(Clone, Debug)]
pub(crate) struct Express<S, W> {
    /// The service itself.
    short: S,
    /// That, and all others, behind what web pages need.
    long: W,
    name: &'static str,
}

// === impl Express ===

impl<S, W> Express<S, W> {
    /// Calls of the service of that name may take the short way.
    pub(crate) fn new(name: &'static str, short: S, long: W) -> Self {
        Self { short, long, name }
    }

    fn may_take<B>(&self, request: &Request<B>) -> bool {
        let path = request.uri().path().strip_prefix('/');
        let is_ours = path
            .and_then(|path| path.strip_prefix(self.name))
            .is_some_and(|method| method.starts_with('/'));
        is_ours && request.version() == Version::HTTP_2 && is_plain(request.headers())
    }
}

/// Whether it is gRPC, and not by a web page: those say where they come from.
fn is_plain(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind == "application/grpc" || kind == "application/grpc+proto")
        && !headers.contains_key(header::ORIGIN)
}

impl<S, W> Service<Request<Body>> for Express<S, W>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    W: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, W::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Which way it will be is not known yet.
        match (self.short.poll_ready(cx), self.long.poll_ready(cx)) {
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.may_take(&request) {
            true => Either::Left(self.short.call(request)),
            false => Either::Right(self.long.call(request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_calls_of_the_service_take_it() {
        let express = Express::new("a.v1.Service", (), ());
        let request = |path: &str, headers: &[(&str, &str)]| {
            let request = Request::post(format!("http://host{path}")).version(Version::HTTP_2);
            let request = headers
                .iter()
                .fold(request, |request, (name, value)| request.header(*name, *value));
            express.may_take(&request.body(()).unwrap())
        };
        let grpc = ("content-type", "application/grpc");
        assert!(request("/a.v1.Service/Run", &[grpc]));
        assert!(request(
            "/a.v1.Service/Run",
            &[("content-type", "application/grpc+proto")]
        ));
        for path in [
            "/a.v1.Services/Run",
            "/a.v1.Service",
            "/b.v1.Service/Run",
            "//a.v1.Service/Run",
            "/",
        ] {
            assert!(!request(path, &[grpc]), "{path}");
        }
        let old = Request::post("http://host/a.v1.Service/Run").header(grpc.0, grpc.1);
        assert!(!express.may_take(&old.body(()).unwrap()), "HTTP/1.1");
        assert!(!request("/a.v1.Service/Run", &[]));
        assert!(!request(
            "/a.v1.Service/Run",
            &[("content-type", "application/grpc-web")]
        ));
        assert!(!request("/a.v1.Service/Run", &[grpc, ("origin", "http://page")]));
    }
}
