//! How a request is refused that never reaches the service.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use tonic::{Code, Status, body::Body};

/// A gRPC status for gRPC callers, plain HTTP for everybody else. gRPC-Web counts as everybody else here: it has not been
/// translated yet, and browsers do not show answers that lack CORS headers to the page anyway.
pub(super) fn refuse<B>(request: &Request<B>, status: Status) -> Response<Body> {
    if is_grpc(request) {
        return status.into_http();
    }
    let code = match status.code() {
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        _ => StatusCode::FORBIDDEN,
    };
    let text = Full::new(Bytes::from(format!("{}\n", status.message())));
    let mut response = Response::new(Body::new(text));
    *response.status_mut() = code;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let content = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content.is_some_and(|kind| kind == b"application/grpc" || kind.starts_with(b"application/grpc+"))
}
