//! Calls between a caller and a sandbox's runtime: passed on, and back, in whole messages.
//!
//! The first message of a caller's stream says where it goes, and is made anew for the runtime. All that follows, both
//! ways, is the same on the wire in both packages, so its bytes pass as they came: neither decoded nor copied. Nothing is
//! kept here. What a caller does not take stays in the runtime, because a message is pulled for each that is sent; and
//! what a caller leaves is dropped, which cancels it at the runtime.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Version, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use sandgate_connection::brief::framed;
use sandgate_errors::Refusal;
use sandgate_proto::v1::{
    self as pb,
    sandbox_service_server::{SERVICE_NAME, SandboxServiceServer},
};
use tonic::{Code, Status, body::Body, server::NamedService};

use super::{
    Sandboxes, exec, files,
    messages::Messages,
    reach::Reached,
    requests::{Outlet, Requests},
    stopping,
};
use crate::{
    convert::{Address, Addressed as _, Call},
    stopping::Stopping,
};

/// The whole service: what a runtime answers is passed on, other calls are answered message by message.
#[derive(Clone, Debug)]
pub struct Service {
    pub(super) sandboxes: Sandboxes,
    calls: SandboxServiceServer<Sandboxes>,
}

/// A service of tonic's, or one in its place.
pub trait GrpcService:
    tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
    + NamedService
    + Clone
    + Send
    + Sync
    + 'static
{
}

/// A runtime's answers on their way to a caller.
pub(super) struct Relayed {
    answers: Body,
    messages: Messages,
    reached: Reached,
    /// What ends it before its end.
    stop: Option<Stop>,
    /// The caller's own stream. Dropped with this, it ends.
    outlet: Option<Outlet>,
    state: State,
}

/// The end of the server.
struct Stop {
    stopping: Stopping,
    /// Ready when it comes.
    begun: Pin<Box<dyn Future<Output = ()> + Send>>,
}

enum State {
    Open,
    /// The runtime's side broke, and the provider is asked why.
    Asking(Pin<Box<dyn Future<Output = Status> + Send>>),
    Ended,
}

/// Where a stream goes, as its first message says.
type Destination<R> = fn(&R) -> Result<Address<'_>, Refusal>;

/// No message is larger; the contract keeps them under 3 MiB.
pub(super) const MAX_MESSAGE: usize = 4 << 20;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_ENCODING: &str = "grpc-encoding";

// === impl Service ===

impl Service {
    /// Serves these sandboxes.
    #[must_use]
    pub fn new(sandboxes: Sandboxes) -> Self {
        Self {
            calls: SandboxServiceServer::new(sandboxes.clone()).max_decoding_message_size(MAX_MESSAGE),
            sandboxes,
        }
    }

    /// Passes a call on, whichever side of it is a stream.
    async fn pass<R: Call + prost::Message + Default>(
        self,
        request: Request<Body>,
        destination: Destination<R>,
    ) -> Response<Body> {
        let passing = self.opened(request, destination);
        let answered = tokio::select! {
            biased;
            answered = passing => answered,
            () = self.sandboxes.stopping.begun() => Err(stopping().into()),
        };
        response(answered)
    }

    /// Reads the first message, finds the way to where it goes, and waits for the beginning of the answer.
    async fn opened<R: Call + prost::Message + Default>(
        &self,
        request: Request<Body>,
        destination: Destination<R>,
    ) -> Result<Relayed, Status> {
        check_encoding(&request)?;
        let mut body = request.into_body();
        let mut messages = Messages::new(MAX_MESSAGE);
        let first = first_message(&mut body, &mut messages).await?;
        let opening: R = decoded(first)?;
        let reached = self.sandboxes.reach(destination(&opening)?).await?;
        let opening = framed(&opening.into_runtime().map_err(Refusal::from)?);
        let (requests, mut outlet) = Requests::new(opening, messages, body);
        let answers = tokio::select! {
            biased;
            answers = reached.open_stream(runtime_request(R::PATH, Body::new(requests))) => answers,
            status = outlet.failure() => return Err(status),
        };
        let answers = match answers {
            Ok(answers) => answers,
            Err(status) => return Err(why(&mut outlet, &reached, status).await),
        };
        let stopping = self.sandboxes.stopping.clone();
        Ok(Relayed::new(answers, reached, Some(stopping), Some(outlet)))
    }
}

impl<S> GrpcService for S where
    S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static
{
}

impl NamedService for Service {
    const NAME: &'static str = SERVICE_NAME;
}

impl tower::Service<Request<Body>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        match method {
            "Exec" => Box::pin(async { Ok(this.pass::<pb::ExecRequest>(request, exec::address).await) }),
            "FollowExec" => {
                Box::pin(async { Ok(this.pass::<pb::FollowExecRequest>(request, |r| Ok(r.address())).await) })
            }
            "Upload" => Box::pin(async { Ok(this.pass::<pb::UploadRequest>(request, files::address).await) }),
            "Download" => Box::pin(async { Ok(this.pass::<pb::DownloadRequest>(request, |r| Ok(r.address())).await) }),
            "WatchFiles" => {
                Box::pin(async { Ok(this.pass::<pb::WatchFilesRequest>(request, |r| Ok(r.address())).await) })
            }
            "Run" => Box::pin(async { Ok(this.relay_patiently::<pb::RunRequest>(request).await) }),
            "FileOps" => Box::pin(async { Ok(this.relay::<pb::FileOpsRequest>(request).await) }),
            "StartExec" => Box::pin(async { Ok(this.relay::<pb::StartExecRequest>(request).await) }),
            "WriteExec" => Box::pin(async { Ok(this.relay_patiently::<pb::WriteExecRequest>(request).await) }),
            "SignalExec" => Box::pin(async { Ok(this.relay::<pb::SignalExecRequest>(request).await) }),
            "ResizeExec" => Box::pin(async { Ok(this.relay::<pb::ResizeExecRequest>(request).await) }),
            "GetExec" => Box::pin(async { Ok(this.relay::<pb::GetExecRequest>(request).await) }),
            "ListExecs" => Box::pin(async { Ok(this.relay::<pb::ListExecsRequest>(request).await) }),
            "WriteChunk" => Box::pin(async { Ok(this.relay::<pb::WriteChunkRequest>(request).await) }),
            _ => self.calls.call(request),
        }
    }
}

pub(super) fn check_encoding(request: &Request<Body>) -> Result<(), Status> {
    match request.headers().get(GRPC_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(Status::unimplemented(
            "compressed messages are not taken: send grpc-encoding identity",
        )),
        _ => Ok(()),
    }
}

pub(super) fn decoded<R: prost::Message + Default>(message: Bytes) -> Result<R, Status> {
    R::decode(message).map_err(|error| Status::internal(format!("the first message does not decode: {error}")))
}

pub(super) fn response(answered: Result<Relayed, Status>) -> Response<Body> {
    match answered {
        Ok(relayed) => {
            let mut response = Response::new(Body::new(relayed));
            response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
            response
        }
        Err(status) => status.into_http(),
    }
}

/// Reads until there is a whole message; gives its payload.
pub(super) async fn first_message(body: &mut Body, messages: &mut Messages) -> Result<Bytes, Status> {
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        messages.push(data)?;
        if let Some(first) = messages.pop_first() {
            return Ok(first);
        }
    }
    Err(Refusal::invalid("request", "the stream ended before its first message").into())
}

pub(super) fn runtime_request(path: &'static str, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, GRPC);
    request
}

/// Why a stream could not be opened.
async fn why(outlet: &mut Outlet, reached: &Reached, status: Status) -> Status {
    match outlet.failed_first() {
        Some(first) => first,
        None => reached.failed(status).await,
    }
}

// === impl Relayed ===

impl Relayed {
    pub(super) fn new(answers: Body, reached: Reached, stopping: Option<Stopping>, outlet: Option<Outlet>) -> Self {
        let stop = stopping.map(|stopping| {
            let told = stopping.clone();
            Stop {
                stopping,
                begun: Box::pin(async move { told.begun().await }),
            }
        });
        Self {
            answers,
            messages: Messages::new(MAX_MESSAGE),
            reached,
            stop,
            outlet,
            state: State::Open,
        }
    }

    /// The last frame: with the status of the call.
    fn end(&mut self, status: &Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.state = State::Ended;
        self.outlet = None;
        let mut trailers = HeaderMap::new();
        // What is unfit for a header is escaped, or left out.
        _ = status.add_header(&mut trailers);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    /// Whether something else than the runtime ends the stream.
    fn poll_interrupted(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if let Some(stop) = &mut self.stop
            && stop.begun.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(stopping().into());
        }
        match &mut self.outlet {
            Some(outlet) => outlet.poll_failure(cx),
            None => Poll::Pending,
        }
    }

    /// The runtime's side is over: in order, or it is found out why not.
    fn over(&mut self, status: Status) -> Option<Status> {
        if status.code() == Code::Ok && self.messages.is_whole() {
            return Some(status);
        }
        if let Some(first) = self.outlet.as_mut().and_then(Outlet::failed_first) {
            return Some(first);
        }
        let status = match status.code() {
            Code::Ok => Status::unknown("the stream ended within a message"),
            _ => status,
        };
        let reached = self.reached.clone();
        self.state = State::Asking(Box::pin(async move { reached.failed(status).await }));
        None
    }
}

impl http_body::Body for Relayed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                // First of all: what is whole is given whole.
                State::Open if let Some(piece) = this.messages.pop() => {
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                State::Asking(asking) => {
                    let status = ready!(asking.as_mut().poll(cx));
                    return this.end(&status);
                }
                // A stream that always has something would never get to wait for the stop.
                State::Open if this.stop.as_ref().is_some_and(|stop| stop.stopping.is_begun()) => {
                    return this.end(&stopping().into());
                }
                State::Open => {}
            }
            let over = match Pin::new(&mut this.answers).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => match this.messages.push(data) {
                        Ok(()) => continue,
                        Err(status) => status,
                    },
                    Err(frame) => last_words(frame.trailers_ref()),
                },
                Poll::Ready(Some(Err(status))) => status,
                Poll::Ready(None) => last_words(None),
                Poll::Pending => {
                    let status = ready!(this.poll_interrupted(cx));
                    return this.end(&status);
                }
            };
            if let Some(status) = this.over(over) {
                return this.end(&status);
            }
        }
    }
}

/// How the runtime says the call ended.
fn last_words(trailers: Option<&HeaderMap>) -> Status {
    let told = trailers.and_then(Status::from_header_map);
    told.unwrap_or_else(|| Status::unknown("the stream ended without a status"))
}
