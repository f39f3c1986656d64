//! A proxy that cuts connections in the middle.

use std::{net::SocketAddr, sync::Arc};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::AbortHandle,
};

/// Passes bytes on, and after a random number of them cuts without a word.
pub(crate) struct CuttingProxy {
    pub(crate) address: SocketAddr,
    accepting: AbortHandle,
}

impl CuttingProxy {
    /// Connections are cut after up to `most` bytes from the runtime.
    pub(crate) async fn start(to: SocketAddr, most: usize, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let random = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let accepting = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let after = random.lock().await.random_range(most / 2..most);
                tokio::spawn(pass(near, to, after));
            }
        });
        Self {
            address,
            accepting: accepting.abort_handle(),
        }
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(mut near: TcpStream, to: SocketAddr, mut left: usize) {
    let mut far = TcpStream::connect(to).await.unwrap();
    let (mut near_in, mut near_out) = near.split();
    let (mut far_in, mut far_out) = far.split();
    let out = async {
        let mut buffer = vec![0; 16 << 10];
        while left > 0 {
            let most = left.min(buffer.len());
            match far_in.read(&mut buffer[..most]).await {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    left -= length;
                    if near_out.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = out => {}
        _ = tokio::io::copy(&mut near_in, &mut far_out) => {}
    }
}
