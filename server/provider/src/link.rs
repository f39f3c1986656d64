//! The runtime's protocol over a carrier, with a connection only while it is used.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{Request, header::AUTHORIZATION};
use hyper_util::rt::TokioIo;
use sandgate_proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tonic::{
    body::Body,
    client::Grpc,
    transport::{Channel, Endpoint, Uri},
};
use tower::{Service, service_fn};

use crate::carrier::Carrier;

// As on every listener of ours: one stopped stream must not stop the others. See the server's `serve`.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
// A message of 64 KiB, with what is around it, in one frame instead of five.
const FRAME: u32 = 128 << 10;
const KEEPALIVE: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// No message is over 3 MiB; the rest is room for what wraps it.
const MESSAGE_LIMIT: usize = 4 << 20;

/// A way to speak to one sandbox's runtime.
#[derive(Debug, Clone)]
pub struct Link {
    carrier: Arc<dyn Carrier>,
    open: Arc<Mutex<Option<Open>>>,
}

/// A connection that shows what each call has to show.
#[derive(Debug, Clone)]
pub struct Conduit {
    channel: Channel,
    carrier: Arc<dyn Carrier>,
}

#[derive(Debug)]
struct Open {
    channel: Channel,
    used: Instant,
}

// === impl Link ===

impl Link {
    /// Speaks over `carrier`. Nothing is opened yet.
    #[must_use]
    pub fn new(carrier: Arc<dyn Carrier>) -> Self {
        Self {
            carrier,
            open: Arc::default(),
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
        RuntimeServiceClient::new(self.conduit())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT)
    }

    /// The same connection for calls whose answers are decoded as something else than the runtime's own types.
    #[must_use]
    pub fn grpc(&self) -> Grpc<Conduit> {
        Grpc::new(self.conduit())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT)
    }

    /// The connection itself.
    #[must_use]
    pub fn conduit(&self) -> Conduit {
        Conduit {
            channel: self.channel(),
            carrier: Arc::clone(&self.carrier),
        }
    }

    fn channel(&self) -> Channel {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_with(|| Open {
            channel: connect_later(Arc::clone(&self.carrier)),
            used: Instant::now(),
        });
        open.used = Instant::now();
        open.channel.clone()
    }

    /// Lets go of a connection that nobody asked for during `span`: a thousand idle sandboxes should cost no memory.
    /// Calls under way go on.
    pub fn rest(&self, span: Duration) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_some_and(|open| open.used.elapsed() >= span) {
            *open = None;
        }
    }
}

// === impl Conduit ===

impl Service<Request<Body>> for Conduit {
    type Response = <Channel as Service<Request<Body>>>::Response;
    type Error = <Channel as Service<Request<Body>>>::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(credential) = self.carrier.credential() {
            request.headers_mut().insert(AUTHORIZATION, credential);
        }
        self.channel.call(request)
    }
}

fn connect_later(carrier: Arc<dyn Carrier>) -> Channel {
    // Nobody resolves this name: the carrier knows the way.
    Endpoint::from_static("http://sandbox")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(KEEPALIVE)
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector_lazy(service_fn(move |_: Uri| {
            let carrier = Arc::clone(&carrier);
            async move { carrier.open().await.map(TokioIo::new).map_err(io::Error::other) }
        }))
}
