//! HTTP/1.1 over whatever way there is, a connection a request: the python-runtime has nothing to lose by it, and a router
//! in between may send the next one elsewhere.

use std::{convert::Infallible, fmt, io};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, StatusCode,
    body::Frame,
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use sandgate_errors::Refusal;
use sandgate_exec::task;
use sandgate_proto::v1::ErrorReason;
use tokio::sync::mpsc;

use crate::{
    dial::{Dial, HttpWay},
    driver::Driver,
};

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    #[error("{0}")]
    Lost(String),
}

// === impl Unanswered ===

impl Unanswered {
    pub(super) fn into_refusal(self) -> Refusal {
        let message = format!("the sandbox can't be reached right now: {self}");
        Refusal::new(ErrorReason::SandboxUnreachable, message)
    }

    fn lost(error: impl fmt::Display) -> Self {
        Self::Lost(error.to_string())
    }
}

pub(super) async fn send(
    dial: &dyn Dial,
    method: Method,
    path: &str,
    body: Option<(&str, Body)>,
    most: usize,
) -> Result<Answered, Unanswered> {
    let way = dial.http(Driver::PythonRuntime.port()).await?;
    send_over(way, method, path, body, most).await
}

pub(super) async fn send_over(
    way: HttpWay,
    method: Method,
    path: &str,
    body: Option<(&str, Body)>,
    most: usize,
) -> Result<Answered, Unanswered> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(way.stream))
        .await
        .map_err(Unanswered::lost)?;
    let serving = task::spawn("http", "", async move { drop(connection.await) });
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", way.path_prefix));
    request = request.header(HOST, way.authority.as_str());
    for (name, value) in &way.headers {
        request = request.header(name, value);
    }
    let body = match body {
        Some((kind, body)) => {
            request = request.header(CONTENT_TYPE, kind);
            body
        }
        None => whole(Bytes::new()),
    };
    let request = request.body(body).map_err(Unanswered::lost)?;
    let answer = sender.send_request(request).await.map_err(Unanswered::lost)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), most).collect().await;
    serving.abort();
    Ok(Answered {
        status,
        body: body.map_err(Unanswered::lost)?.to_bytes(),
    })
}

pub(super) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).boxed_unsync()
}

/// A file as the one part of a form, and the type of that.
pub(super) fn form(name: &str, content: mpsc::Receiver<Bytes>) -> (String, Body) {
    const BOUNDARY: &str = "sandgate-7f3b1c95d2e84a60";
    let name: String = name
        .chars()
        .map(|c| if matches!(c, '"' | '\\' | '\r' | '\n') { '_' } else { c })
        .collect();
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{BOUNDARY}--\r\n");
    let stage = (Some(Bytes::from(head)), content, Some(Bytes::from(tail)));
    let parts = futures_util::stream::unfold(stage, |(head, mut content, tail)| async move {
        if let Some(head) = head {
            return Some((head, (None, content, tail)));
        }
        match content.recv().await {
            Some(bytes) => Some((bytes, (None, content, tail))),
            None => tail.map(|tail| (tail, (None, content, None))),
        }
    });
    let frames = futures_util::StreamExt::map(parts, |bytes| Ok::<_, Infallible>(Frame::data(bytes)));
    (
        format!("multipart/form-data; boundary={BOUNDARY}"),
        StreamBody::new(frames).boxed_unsync(),
    )
}
