//! Stands between servers and the API server, and cuts what goes through it when it is told to.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
};

/// A proxy.
pub(crate) struct Proxy {
    address: SocketAddr,
    open: Arc<Mutex<Vec<AbortHandle>>>,
    accepting: JoinHandle<()>,
}

// === impl Proxy ===

impl Proxy {
    /// In front of the API server that a kubeconfig names. Writes one that names the proxy.
    pub(crate) async fn start(kubeconfig: &Path, written: &Path) -> Self {
        let text = fs::read_to_string(kubeconfig).unwrap();
        let server = text.split_once("server: https://").unwrap().1;
        let server = server.split_whitespace().next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // The API server's certificate is good for the loopback too.
        fs::write(written, text.replace(&server, &address.to_string())).unwrap();
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
            address,
            open,
            accepting,
        }
    }

    /// Cuts every connection, and says how many there were.
    pub(crate) fn cut(&self) -> usize {
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

impl std::fmt::Display for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

async fn forward(mut client: TcpStream, server: String) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
