//! The floor: the same calls on a tonic server that does nothing but what the call itself takes, behind a tonic proxy that
//! does nothing but pass them on.

mod proxy;
mod server;

use std::{
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use sandgate_tests::{Client, connect_to};
use tempfile::TempDir;
use tonic::transport::Endpoint;

/// Server and proxy, each a process of its own. They end with the value.
pub(crate) struct Floor {
    _dir: TempDir,
    children: [Child; 2],
    /// Of the proxy.
    pub(crate) address: String,
    /// Through the proxy, on TCP.
    pub(crate) two_hops: Client,
    /// The server itself, on its Unix socket.
    pub(crate) one_hop: Client,
}

// As everywhere in Sandgate.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

// === impl Floor ===

impl Floor {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("floor");
        let server = role(&dir, "floor-server").arg(&socket).spawn().unwrap();
        let one_hop = loop {
            match connect_to(socket.clone()).await {
                Some(client) => break client,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let mut proxy = role(&dir, "floor-proxy")
            .arg(&socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(proxy.stdout.take().unwrap())
            .read_line(&mut address)
            .unwrap();
        let address = address.trim().to_owned();
        let channel = Endpoint::from_shared(address.clone())
            .unwrap()
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect()
            .await
            .unwrap();
        Self {
            _dir: dir,
            children: [server, proxy],
            address,
            two_hops: Client::new(channel),
            one_hop,
        }
    }
}

/// This program in a role, as a file of its own. Client, proxy and server are different programs wherever there are two hops;
/// run from one file they would share the memory of their code, and each find in the processor's caches what the one before
/// it has just run.
fn role(dir: &TempDir, name: &str) -> Command {
    let program = dir.path().join(name);
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(program);
    command.arg(name);
    command
}

impl Drop for Floor {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The process that `role` names, until it is killed. `None`: no such role.
pub(crate) async fn play(role: &str, socket: &Path) -> Option<()> {
    match role {
        "floor-server" => server::serve(socket).await,
        "floor-proxy" => proxy::serve(socket).await,
        _ => return None,
    }
    Some(())
}
