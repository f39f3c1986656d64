//! The runtime's protocol over a carrier, with a connection only while it is used.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{
    Request, Response, Uri,
    header::AUTHORIZATION,
    uri::{Authority, Scheme},
};
use sandgate_proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tokio::{sync::Mutex, time};
use tonic::{ConnectError, body::Body};
use tower::Service;

use crate::{carrier::Carrier, connection::Connection};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// No message is over 3 MiB; the rest is room for what wraps it.
const MESSAGE_LIMIT: usize = 4 << 20;
/// Nobody resolves this name: the carrier knows the way.
const NAME: &str = "sandbox";

/// A way to speak to one sandbox's runtime.
#[derive(Debug, Clone)]
pub struct Link {
    carrier: Arc<dyn Carrier>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    open: Option<Open>,
    /// When there was last none to be had, and why.
    failed: Option<(Instant, String)>,
}

/// A link as a service that takes calls. Each shows what it has to show.
#[derive(Debug, Clone)]
pub struct Conduit(Link);

/// Why a call did not come back.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is no connection to be had.
    #[error("can't connect: {0}")]
    Connect(#[source] ConnectError),
    /// The connection broke.
    #[error(transparent)]
    Broken(#[from] h2::Error),
    /// The path of the call is none.
    #[error(transparent)]
    Path(#[from] http::Error),
}

#[derive(Debug)]
struct Open {
    connection: Connection,
    used: Instant,
}

// === impl Link ===

impl Link {
    /// Speaks over `carrier`. Nothing is opened yet.
    #[must_use]
    pub fn new(carrier: Arc<dyn Carrier>) -> Self {
        Self {
            carrier,
            state: Arc::default(),
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
    pub async fn call(&self, mut request: Request<Body>) -> Result<Response<Body>, LinkError> {
        let path = request.uri().path_and_query().cloned();
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(Authority::from_static(NAME));
        *request.uri_mut() = path
            .into_iter()
            .fold(uri, |uri, path| uri.path_and_query(path))
            .build()?;
        if let Some(credential) = self.carrier.credential() {
            request.headers_mut().insert(AUTHORIZATION, credential);
        }
        Ok(self.connection().await?.call(request).await?)
    }

    /// One that takes calls.
    async fn connection(&self) -> Result<Connection, LinkError> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(open) = &mut state.open
            && let Ok(ready) = open.connection.ready().await
        {
            open.used = Instant::now();
            return Ok(ready);
        }
        // Whoever waited while another failed does not try again, or the last of many would wait for all of them.
        if let Some((at, why)) = &state.failed
            && *at >= asked
        {
            return Err(unreachable(why.clone()));
        }
        state.open = None;
        let opened = time::timeout(CONNECT_TIMEOUT, self.connect()).await;
        match opened.map_err(unreachable).flatten() {
            Ok(connection) => {
                state.open = Some(Open {
                    connection: connection.clone(),
                    used: Instant::now(),
                });
                Ok(connection)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.to_string()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        let stream = self.carrier.open().await.map_err(unreachable)?;
        Ok(Connection::new(stream).await?)
    }

    /// Lets go of a connection that nobody asked for during `span`: a thousand idle sandboxes should cost no memory.
    /// Calls under way go on.
    pub fn rest(&self, span: Duration) {
        // One that is being opened, or asked for, is in use.
        if let Ok(mut state) = self.state.try_lock() {
            state.open.take_if(|open| open.used.elapsed() >= span);
        }
    }
}

fn unreachable(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LinkError {
    LinkError::Connect(ConnectError(why.into()))
}

// === impl Conduit ===

impl Service<Request<Body>> for Conduit {
    type Response = Response<Body>;
    type Error = LinkError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, LinkError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let link = self.0.clone();
        Box::pin(async move { link.call(request).await })
    }
}
