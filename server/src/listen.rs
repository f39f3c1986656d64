//! Everything that the server can be reached by, as one stream of connections.

mod conn;
mod unix;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    net::{TcpListener, UnixListener},
    time::{Sleep, sleep},
};
use tokio_stream::Stream;

use crate::config::ListenAddr;

pub(crate) use self::conn::Conn;
pub use self::conn::Peer;

/// Listeners that have their addresses. Connections wait from now on.
#[derive(Debug)]
pub(crate) struct Listeners {
    tcp: Vec<(TcpListener, SocketAddr)>,
    unix: UnixListener,
    socket: PathBuf,
}

/// Connections from all listeners.
pub(crate) struct Incoming {
    listeners: Listeners,
    /// Which listener has the next turn, so that a busy one does not keep the others waiting.
    turn: usize,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}: {source}")]
pub struct ListenError {
    address: String,
    source: io::Error,
}

/// How long to wait when the machine is out of descriptors or memory: they come back, but not by asking all the time.
const PAUSE: Duration = Duration::from_millis(200);
const SOCKET: &str = "sandgate.sock";

// === impl Listeners ===

impl Listeners {
    pub(crate) async fn bind(addrs: &[ListenAddr], state_dir: &Path) -> Result<Self, ListenError> {
        let mut tcp = Vec::new();
        for addr in addrs {
            let wanted = addr.get();
            let failed = |source| ListenError {
                address: wanted.to_string(),
                source,
            };
            let listener = TcpListener::bind(wanted).await.map_err(failed)?;
            let addr = listener.local_addr().map_err(failed)?;
            tcp.push((listener, addr));
        }
        let socket = state_dir.join(SOCKET);
        let unix = unix::bind(state_dir, SOCKET).map_err(|source| ListenError {
            address: socket.display().to_string(),
            source,
        })?;
        Ok(Self { tcp, unix, socket })
    }

    pub(crate) fn tcp_addrs(&self) -> Vec<SocketAddr> {
        self.tcp.iter().map(|(_, addr)| *addr).collect()
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    fn poll_accept(&self, n: usize, cx: &mut Context<'_>) -> Poll<io::Result<Conn>> {
        match self.tcp.get(n) {
            Some((listener, local)) => listener.poll_accept(cx).map_ok(|(stream, remote)| {
                // Small messages go out at once. It is no reason to refuse the connection if they do not.
                _ = stream.set_nodelay(true);
                Conn::tcp(stream, *local, remote)
            }),
            None => self.unix.poll_accept(cx).map_ok(|(stream, _)| Conn::unix(stream)),
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        // Who finds no socket knows that there is no server. One that can't be removed is replaced at the next start.
        _ = std::fs::remove_file(&self.socket);
    }
}

// === impl Incoming ===

impl From<Listeners> for Incoming {
    fn from(listeners: Listeners) -> Self {
        Self {
            listeners,
            turn: 0,
            pause: None,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Conn>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let count = self.listeners.tcp.len() + 1;
            let turn = self.turn;
            let accepted = (0..count).map(|n| (turn + n) % count).find_map(|n| {
                let polled = self.listeners.poll_accept(n, cx);
                matches!(polled, Poll::Ready(_)).then_some((n, polled))
            });
            let Some((n, Poll::Ready(accepted))) = accepted else {
                return Poll::Pending;
            };
            self.turn = n + 1;
            match accepted {
                Ok(conn) => return Poll::Ready(Some(Ok(conn))),
                // The caller left before its turn.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::error!(%error, "can't take connections");
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}
