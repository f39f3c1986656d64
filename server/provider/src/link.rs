//! The runtime's protocol over a carrier, with a connection only while it is used.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, header::AUTHORIZATION, uri::Authority};
use sandgate_connection::{Keepalive, Line, LineError};
use sandgate_proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tonic::body::Body;
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
}

/// A link as a service that takes calls. Each shows what it has to show.
#[derive(Debug, Clone)]
pub struct Conduit(Link);

// === impl Link ===

impl Link {
    /// Speaks over `carrier`. Nothing is opened yet.
    #[must_use]
    pub fn new(carrier: Arc<dyn Carrier>) -> Self {
        Self {
            carrier,
            line: Line::new(Authority::from_static(NAME), KEEPALIVE),
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
    pub async fn call(&self, mut request: Request<Body>) -> Result<Response<Body>, LineError> {
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
