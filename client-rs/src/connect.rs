//! One channel to a server, which connects again by itself.

use std::{path::PathBuf, sync::Arc, time::Duration};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::Interceptor,
    transport::{Channel, Endpoint as Transport},
};
use tower::service_fn;

use crate::{
    endpoint::{Address, Endpoint},
    error::{Error, Result},
};

// A fixed window for each stream below that of the connection: a stream that nobody reads holds up no other. Never
// adaptive, which makes both the same.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
// A message of 64 KiB, with what is around it, in one frame instead of five.
const FRAME: u32 = 128 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
// A peer that went away without a word is noticed after the sum of both, while a call is open.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Puts the token on every call.
#[derive(Clone, Debug)]
pub struct Authorize(Option<MetadataValue<Ascii>>);

/// Connects, so that a server that is not there is told at once.
pub(crate) async fn connect(endpoint: &Endpoint) -> Result<(Channel, Authorize)> {
    let channel = match &endpoint.address {
        Address::Http(uri) => transport(uri.clone()).connect().await,
        Address::Unix(path) => {
            let path: Arc<PathBuf> = Arc::new(path.clone());
            let connector = service_fn(move |_: Uri| {
                let path = Arc::clone(&path);
                async move { UnixStream::connect(&*path).await.map(TokioIo::new) }
            });
            // The address only fills `:authority`, which the server checks.
            transport(Uri::from_static("http://localhost"))
                .connect_with_connector(connector)
                .await
        }
    };
    let channel = channel.map_err(|error| Error::unreachable(&endpoint.address, error))?;
    Ok((
        channel,
        Authorize(endpoint.token.as_ref().map(crate::endpoint::Token::bearer)),
    ))
}

fn transport(uri: Uri) -> Transport {
    Transport::from(uri)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
}

// === impl Authorize ===

impl Interceptor for Authorize {
    fn call(&mut self, mut request: Request<()>) -> std::result::Result<Request<()>, Status> {
        if let Some(bearer) = &self.0 {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}
