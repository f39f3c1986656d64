//! The runtime on a network: one port, because the policies around sandboxes let one through.
//!
//! A connection begins as HTTP/2 (gRPC) or as HTTP/1.1, which its first bytes tell. HTTP/1.1 is for health probes, for the
//! python-runtime's API if that is on, and for WebSockets; inside of a WebSocket there is HTTP/2 again. All HTTP/2 is
//! served by one gRPC server, whose service asks each call for a token ([`Gated`]).

mod gate;
mod http1;

use std::{io, sync::Arc, time::Duration};

use sandgate_exec::task;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{sleep, timeout},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::transport::{Error, server::Router};

pub(crate) use self::gate::{Gate, Gated};
use self::http1::Http1;
use crate::{accepted::Accepted, python::PythonApi};

/// A listener on a network and what is served there beside gRPC.
pub(crate) struct Network {
    listener: TcpListener,
    python: Option<Arc<PythonApi>>,
}

/// What every connection may need.
#[derive(Clone)]
struct Shared {
    python: Option<Arc<PythonApi>>,
    /// To the gRPC server.
    streams: mpsc::Sender<Accepted>,
    over: watch::Receiver<bool>,
    /// Dropped with the last connection that speaks HTTP/1.1.
    _alive: mpsc::Sender<()>,
}

/// Connections at once; others wait to be accepted. Anybody can open one, and each is a descriptor.
const MAX_CONNECTIONS: usize = 1_000;
/// How long a connection may be silent at first.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);
/// How HTTP/2 begins with prior knowledge. No method of HTTP/1.1 does.
const HTTP2: &[u8] = b"PRI ";
/// Between two looks at a beginning that came in pieces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// After an accept that failed, most likely for lack of descriptors.
pub(crate) const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

// === impl Network ===

impl Network {
    pub(crate) fn new(listener: TcpListener, python: Option<PythonApi>) -> Self {
        Self {
            listener,
            python: python.map(Arc::new),
        }
    }

    /// Serves until it is over and the last connection has come to its end.
    pub(crate) async fn serve(self, server: Router, over: watch::Receiver<bool>) -> Result<(), Error> {
        let (streams, incoming) = mpsc::channel(1);
        let (alive, mut drained) = mpsc::channel(1);
        let shared = Shared {
            python: self.python,
            streams,
            over: over.clone(),
            _alive: alive,
        };
        let incoming = ReceiverStream::new(incoming).map(Ok::<_, io::Error>);
        let (served, ()) = tokio::join!(
            server.serve_with_incoming_shutdown(incoming, is_over(over)),
            accept(self.listener, shared),
        );
        let _ = drained.recv().await;
        served
    }
}

/// Waits until it is over.
pub(crate) async fn is_over(mut over: watch::Receiver<bool>) {
    let _ = over.wait_for(|over| *over).await;
}

async fn accept(listener: TcpListener, shared: Shared) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut over = std::pin::pin!(is_over(shared.over.clone()));
    loop {
        let next = async {
            let permit = room.clone().acquire_owned().await;
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            () = &mut over => return,
        };
        match (accepted, permit) {
            (Ok((stream, _)), Ok(permit)) => {
                task::spawn("connection", "", connection(stream, Arc::new(permit), shared.clone()));
            }
            (Err(error), _) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_AGAIN).await;
            }
            (_, Err(_)) => return,
        }
    }
}

async fn connection(stream: TcpStream, permit: Arc<OwnedSemaphorePermit>, shared: Shared) {
    let _ = stream.set_nodelay(true);
    match timeout(SILENCE, is_http2(&stream)).await {
        // Closed: it is over.
        Ok(Ok(true)) => drop(shared.streams.send(Accepted::tcp(stream, permit)).await),
        Ok(Ok(false)) => Http1::new(shared, permit).serve(stream).await,
        Ok(Err(_)) | Err(_) => {}
    }
}

/// Looks at the first bytes without taking them.
async fn is_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; HTTP2.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == HTTP2.len() || seen == 0 || first[..seen] != HTTP2[..seen] {
            return Ok(first[..seen] == *HTTP2);
        }
        sleep(LOOK_AGAIN).await;
    }
}
