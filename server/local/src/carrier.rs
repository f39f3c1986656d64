//! The way to a sandbox's runtime: a Unix socket in the sandbox's directory.

use std::{
    io,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rustix::fs::{Mode, OFlags};
use sandgate_monitor::layout;
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::{ByteStream, Carrier};
use sandgate_sys::QuietStream;
use tokio::{net::UnixStream, time};

/// A full backlog refuses at once: this often we ask again.
const BUSY_TRIES: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// A sandbox's directory, which moves once: when the sandbox is complete.
#[derive(Debug, Clone)]
pub(crate) struct Place(Arc<Mutex<PathBuf>>);

/// Opens connections to the runtime.
#[derive(Debug)]
pub(crate) struct Socket(pub(crate) Place);

// === impl Place ===

impl Place {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self(Arc::new(Mutex::new(dir)))
    }

    pub(crate) fn get(&self) -> PathBuf {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, dir: PathBuf) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = dir;
    }
}

// === impl Socket ===

#[async_trait]
impl Carrier for Socket {
    fn mode(&self) -> ConnectionMode {
        ConnectionMode::Local
    }

    async fn open(&self) -> io::Result<Box<dyn ByteStream>> {
        let stream = connect(&self.0.get(), layout::SOCKET).await?;
        Ok(Box::new(QuietStream::new(stream)?))
    }

    fn is_next_door(&self) -> bool {
        true
    }
}

/// Connects to a socket in a directory whose path may be longer than a socket's address can be.
pub(crate) async fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let at = rustix::fs::open(dir, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{name}", at.as_raw_fd());
    let mut tries = 0;
    loop {
        match UnixStream::connect(&path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries < BUSY_TRIES => {
                tries += 1;
                time::sleep(BUSY_PAUSE).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_path_longer_than_a_sockets_address_is_no_hindrance() {
        let top = tempfile::tempdir().unwrap();
        let deep = top.path().join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).unwrap();
        let short = top.path().join("s");
        let _listener = UnixListener::bind(&short).unwrap();
        std::fs::rename(&short, deep.join(layout::SOCKET)).unwrap();
        let socket = Socket(Place::new(deep));
        socket.open().await.unwrap();
        socket.0.set(top.path().to_owned());
        assert!(socket.open().await.is_err());
    }
}
