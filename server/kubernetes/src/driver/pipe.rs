//! From a driver to the server that uses it: the runtime's protocol, over a pipe in memory.

use std::{fmt, io, sync::Arc};

use async_trait::async_trait;
use sandgate_proto::{runtime::v1::runtime_service_server::RuntimeServiceServer, v1::ConnectionMode};
use sandgate_provider::{ByteStream, Carrier};
use tonic::transport::Server;
use tracing::Instrument as _;

use super::{Driver, service::Service};
use crate::dial::Dial;

/// Bytes between the two ends.
const PIPE: usize = 1 << 20;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
/// No message is over 3 MiB; the rest is room for what wraps it.
const MESSAGE_LIMIT: usize = 4 << 20;

/// Our runtime speaks for itself: the bytes are those that were dialled.
#[derive(Debug)]
pub(crate) struct Straight(pub(crate) Arc<dyn Dial>);

/// A driver in this process. Whatever becomes of one pipe, what it knows of its execs stays.
pub(crate) struct Pipe {
    service: Service,
}

// === impl Straight ===

#[async_trait]
impl Carrier for Straight {
    fn mode(&self) -> ConnectionMode {
        self.0.mode()
    }

    async fn open(&self) -> io::Result<Box<dyn ByteStream>> {
        self.0.open(Driver::Runtime.port()).await
    }
}

// === impl Pipe ===

impl Pipe {
    pub(crate) fn new(service: Service) -> Self {
        Self { service }
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pipe").field(&self.service.inside).finish()
    }
}

#[async_trait]
impl Carrier for Pipe {
    fn mode(&self) -> ConnectionMode {
        self.service.inside.mode()
    }

    fn is_busy(&self) -> bool {
        self.service.is_busy()
    }

    async fn open(&self) -> io::Result<Box<dyn ByteStream>> {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let calls = RuntimeServiceServer::new(self.service.clone())
            .max_decoding_message_size(MESSAGE_LIMIT)
            .max_encoding_message_size(MESSAGE_LIMIT);
        // As on every listener of ours: one stopped stream must not stop the others.
        let serving = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .add_service(calls)
            .serve_with_incoming(futures_util::stream::iter([Ok::<_, io::Error>(ours)]));
        // It ends when the other end is dropped, and all calls on it with it.
        let span = tracing::debug_span!("task", name = "driver", driver = self.service.inside.driver().as_str());
        tokio::spawn(async move { drop(serving.await) }.instrument(span));
        Ok(Box::new(theirs))
    }
}
