//! What is spoken in HTTP/1.1: the health probe, the way to a WebSocket, and the python-runtime's API.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use sandgate_exec::task;
use tokio::{net::TcpStream, sync::OwnedSemaphorePermit};
use tonic::body::Body;

use super::{Shared, is_over};
use crate::accepted::Accepted;

/// One connection that speaks HTTP/1.1.
#[derive(Clone)]
pub(super) struct Http1 {
    shared: Shared,
    permit: Arc<OwnedSemaphorePermit>,
}

const HEALTH: &str = "/healthz";
/// How long the head of a request may take, and how long a connection is kept for the next one.
const HEAD_TIME: Duration = Duration::from_secs(60);

// === impl Http1 ===

impl Http1 {
    pub(super) fn new(shared: Shared, permit: Arc<OwnedSemaphorePermit>) -> Self {
        Self { shared, permit }
    }

    pub(super) async fn serve(self, stream: TcpStream) {
        let over = is_over(self.shared.over.clone());
        let answer = service_fn(|request| {
            let http1 = self.clone();
            async move { Ok::<_, Infallible>(http1.answer(request).await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answer).with_upgrades());
        let outcome = tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = over => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "an HTTP/1.1 connection failed");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, HEALTH) => text(StatusCode::OK, "ok\n"),
            (&Method::GET, sandgate_websocket::PATH) => self.upgrade(request),
            _ => match &self.shared.python {
                Some(python) => python.answer(request).await,
                None => text(StatusCode::NOT_FOUND, "not found\n"),
            },
        }
    }

    /// Hands the connection to the gRPC server once the answer is sent.
    fn upgrade(&self, request: Request<Incoming>) -> Response<Body> {
        let headers = match sandgate_websocket::answer(request.headers()) {
            Ok(headers) => headers,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let (streams, permit) = (self.shared.streams.clone(), self.permit.clone());
        task::spawn("upgrade", "", async move {
            if let Ok(upgraded) = hyper::upgrade::on(request).await {
                let _ = streams.send(Accepted::websocket(upgraded, permit)).await;
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = headers;
        response
    }
}

fn text(status: StatusCode, text: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(text.into())));
    *response.status_mut() = status;
    response
}
