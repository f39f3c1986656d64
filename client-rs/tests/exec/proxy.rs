//! A connection that breaks: bytes go through until a random number of them did, then both ends are closed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Stands between client and fake.
pub(crate) struct Proxy {
    pub(crate) address: String,
    pub(crate) down: Arc<AtomicBool>,
    pub(crate) cuts: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Cuts each connection after at most `most` bytes; 0: never.
    pub(crate) async fn start(target: String, seed: u64, most: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (down, cuts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_down, count) = (down.clone(), cuts.clone());
        let task = tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            // The first connection must come about for the client to be there at all.
            let mut first = true;
            while let Ok((caller, _)) = listener.accept().await {
                if is_down.load(Ordering::SeqCst) {
                    continue;
                }
                let room = match most {
                    0 => u64::MAX,
                    most => random.random_range(if first { 500 } else { 0 }..most.max(501)),
                };
                first = false;
                let server = TcpStream::connect(&target).await.unwrap();
                server.set_nodelay(true).unwrap();
                caller.set_nodelay(true).unwrap();
                tokio::spawn(carry(caller, server, room, is_down.clone(), count.clone()));
            }
        });
        Self {
            address,
            down,
            cuts,
            task,
        }
    }
}

async fn carry(
    mut caller: TcpStream,
    mut server: TcpStream,
    mut room: u64,
    down: Arc<AtomicBool>,
    cuts: Arc<AtomicU64>,
) {
    let (mut up, mut back) = (vec![0; 4096], vec![0; 4096]);
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(5));
    while room > 0 && !down.load(Ordering::SeqCst) {
        let (bytes, to) = tokio::select! {
            read = caller.read(&mut up) => match read {
                Ok(1..) => (&up[..read.unwrap()], &mut server),
                _ => return,
            },
            read = server.read(&mut back) => match read {
                Ok(1..) => (&back[..read.unwrap()], &mut caller),
                _ => return,
            },
            _ = tick.tick() => continue,
        };
        let now = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        room -= now as u64;
        if to.write_all(&bytes[..now]).await.is_err() {
            return;
        }
    }
    cuts.fetch_add(1, Ordering::SeqCst);
}
