//! The HTTP API of agent-sandbox's python-runtime, so that its SDKs can use a sandbox with this runtime.
//!
//! Commands are execs and files are opened beneath the working directory, like those of any caller. What the API lacks
//! (streams, stdin, signals) is lacking here too; what the original gets wrong (a child that holds the output holds the
//! answer, output in memory, half an upload in place) is not repeated. It has no authentication, so it is off by default.

mod execute;
mod files;
mod multipart;
mod path;
mod text;
mod words;

use std::path::Path;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::body::Incoming;
use sandgate_proto::runtime::v1::FileView;
use serde_json::{Value, json};
use tonic::body::Body;

use crate::service::Service;

/// The API, for callers on a network.
pub(crate) struct PythonApi {
    service: Service,
    /// The directory that paths are in.
    base: FileView,
}

// === impl PythonApi ===

impl PythonApi {
    pub(crate) fn new(service: Service, base: &Path) -> Self {
        let (root_dir, root_dir_raw) = sandgate_files::path::twins(sandgate_files::path::bytes(base));
        let base = FileView {
            root_dir,
            root_dir_raw,
            ..Default::default()
        };
        Self { service, base }
    }

    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let (first, rest) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
        match (request.method(), first) {
            (&Method::GET, "") => with_json(
                StatusCode::OK,
                &json!({"status": "ok", "message": "Sandbox Runtime is active."}),
            ),
            (&Method::POST, "execute") => execute::execute(&self.service, request.into_body()).await,
            (&Method::POST, "upload") => files::upload(self, request).await,
            (&Method::GET, "download") => files::download(self, rest).await,
            (&Method::GET, "list") => files::list(self, rest).await,
            (&Method::GET, "exists") => files::exists(self, rest).await,
            (_, "" | "execute" | "upload" | "download" | "list" | "exists") => {
                detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
            }
            _ => detail(StatusCode::NOT_FOUND, "Not Found"),
        }
    }
}

fn with_json(status: StatusCode, value: &Value) -> Response<Body> {
    typed(
        status,
        "application/json",
        Body::new(Full::new(Bytes::from(value.to_string()))),
    )
}

fn typed(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A refusal in the words of the API.
fn message(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    with_json(status, &json!({"message": message.into()}))
}

/// A refusal in the words of the framework that the API was written with.
fn detail(status: StatusCode, detail: impl Into<String>) -> Response<Body> {
    with_json(status, &json!({"detail": detail.into()}))
}
