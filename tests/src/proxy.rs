//! Forwards bytes from one Unix socket to another, until it is told to cut.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::{AbortHandle, JoinHandle},
};

/// Bytes that are passed on at once: few enough that a cut goes through the middle of messages.
const PIECE: usize = 1000;

/// A proxy.
pub struct Proxy {
    socket: PathBuf,
    open: Arc<Mutex<Vec<AbortHandle>>>,
    accepting: JoinHandle<()>,
}

// === impl Proxy ===

impl Proxy {
    /// Listens on the one and connects to the other, for each connection anew.
    pub fn start(socket: PathBuf, server: PathBuf) -> Self {
        let listener = UnixListener::bind(&socket).unwrap();
        let open: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let opened = Arc::clone(&open);
        let accepting = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let connection = tokio::spawn(forward(client, server.clone()));
                opened.lock().unwrap().push(connection.abort_handle());
            }
        });
        Self {
            socket,
            open,
            accepting,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Cuts every connection, and says how many there were.
    pub fn cut(&self) -> usize {
        let mut open = self.open.lock().unwrap();
        let alive = open.iter().filter(|connection| !connection.is_finished()).count();
        open.drain(..).for_each(|connection| connection.abort());
        alive
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn forward(client: UnixStream, server: PathBuf) {
    let Ok(server) = UnixStream::connect(server).await else {
        return;
    };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = pump(from_client, to_server) => {}
        () = pump(from_server, to_client) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut piece = [0; PIECE];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
