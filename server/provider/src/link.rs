//! The runtime's protocol over a carrier, with a connection only while it is used.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri, header::AUTHORIZATION, uri::Authority};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use sandgate_connection::{BriefLine, Keepalive, Line, LineError, brief::Outcome};
use sandgate_proto::runtime::v1::{runtime_service_client::RuntimeServiceClient, runtime_service_server::SERVICE_NAME};
use tonic::{Status, body::Body};
use tower::Service;

use crate::carrier::Carrier;

/// No message is over 3 MiB; the rest is room for what wraps it.
const MESSAGE_LIMIT: usize = 4 << 20;
/// Nobody resolves this name: the carrier knows the way.
const NAME: &str = "sandbox";
const KEEPALIVE: Keepalive = Keepalive {
    every: Duration::from_secs(30),
    patience: Duration::from_secs(20),
    when_idle: true,
};

/// A way to speak to one sandbox's runtime.
#[derive(Debug, Clone)]
pub struct Link {
    carrier: Arc<dyn Carrier>,
    line: Line,
    /// For calls with one message there and one back, where the carrier has that.
    brief: Option<BriefLine>,
}

/// The answer to a brief call, as gRPC has it.
struct Answer {
    message: Option<Bytes>,
    /// That it came to a good end was said.
    is_told: bool,
}

/// A link as a service that takes calls. Each shows what it has to show.
#[derive(Debug, Clone)]
pub struct Conduit(Link);

/// The calls with streams. All others may go without HTTP/2.
const STREAMS: [&str; 5] = ["Exec", "FollowExec", "Upload", "Download", "WatchFiles"];

// === impl Link ===

impl Link {
    /// Speaks over `carrier`. Nothing is opened yet.
    #[must_use]
    pub fn new(carrier: Arc<dyn Carrier>) -> Self {
        Self {
            line: Line::new(Authority::from_static(NAME), KEEPALIVE),
            brief: carrier.is_next_door().then(|| BriefLine::new(KEEPALIVE)),
            carrier,
        }
    }

    /// The way in use.
    #[must_use]
    pub fn carrier(&self) -> &dyn Carrier {
        &*self.carrier
    }

    /// A client. Its connection is opened by the first call, shared by all, and opened again when it was lost.
    #[must_use]
    pub fn client(&self) -> RuntimeServiceClient<Conduit> {
        RuntimeServiceClient::new(Conduit(self.clone()))
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT)
    }

    /// Makes a call, of which only the path is looked at, and waits for the beginning of the answer.
    ///
    /// # Errors
    /// When there is no connection, or it breaks. Whether the call was made is not known then.
    pub async fn call(&self, request: Request<Body>) -> Result<Response<Body>, LineError> {
        let (head, mut body) = request.into_parts();
        if let Some(brief) = &self.brief
            && let Some(method) = brief_method(&head.uri)
        {
            let message = match body.collect().await {
                Ok(message) => message.to_bytes(),
                Err(status) => return Ok(status.into_http()),
            };
            let carrier = Arc::clone(&self.carrier);
            let outcome = brief.call(method, message, || async move { carrier.open().await });
            match outcome.await? {
                Outcome::Answer(message) => return Ok(Response::new(Body::new(Answer::new(message)))),
                Outcome::Refusal(status) => return Ok(status.into_http()),
                Outcome::NotSpoken(message) => body = Body::new(Full::new(message)),
            }
        }
        let mut request = Request::from_parts(head, body);
        if let Some(credential) = self.carrier.credential() {
            request.headers_mut().insert(AUTHORIZATION, credential);
        }
        let carrier = Arc::clone(&self.carrier);
        self.line.call(request, || async move { carrier.open().await }).await
    }

    /// Lets go of a connection that nobody asked for during `span`: a thousand idle sandboxes should cost no memory.
    /// Calls under way go on.
    pub fn rest(&self, span: Duration) {
        self.line.rest(span);
        self.brief.iter().for_each(|brief| brief.rest(span));
    }
}

/// The method of a call with one message there and one back.
fn brief_method(uri: &Uri) -> Option<&str> {
    let (service, method) = uri.path().strip_prefix('/')?.split_once('/')?;
    (service == SERVICE_NAME && !STREAMS.contains(&method)).then_some(method)
}

// === impl Answer ===

impl Answer {
    fn new(message: Bytes) -> Self {
        Self {
            message: Some(message),
            is_told: false,
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(match self.message.take() {
            Some(message) => Some(Ok(Frame::data(message))),
            None if std::mem::replace(&mut self.is_told, true) => None,
            None => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(trailers)))
            }
        })
    }
}

// === impl Conduit ===

impl Service<Request<Body>> for Conduit {
    type Response = Response<Body>;
    type Error = LineError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, LineError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LineError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let link = self.0.clone();
        Box::pin(async move { link.call(request).await })
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn what_is_a_stream_in_the_contract_is_one_here() {
        let files = FileDescriptorSet::decode(sandgate_proto::FILE_DESCRIPTOR_SET).unwrap();
        let services = files.file.iter().flat_map(|file| {
            let package = file.package();
            file.service
                .iter()
                .map(move |service| (format!("{package}.{}", service.name()), service))
        });
        let mut seen = 0;
        for (_, service) in services.filter(|(name, _)| name == SERVICE_NAME) {
            for method in &service.method {
                let path: Uri = format!("/{SERVICE_NAME}/{}", method.name()).parse().unwrap();
                let is_brief = !method.client_streaming() && !method.server_streaming();
                assert_eq!(brief_method(&path).is_some(), is_brief, "{}", method.name());
                seen += 1;
            }
        }
        assert!(seen > STREAMS.len());
        assert_eq!(brief_method(&Uri::from_static("/another.Service/Run")), None);
    }
}
