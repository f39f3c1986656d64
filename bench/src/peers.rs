//! What users would pick instead: each a real program on this machine that runs the same command.
//!
//! The daemons are spoken to over one connection that stays, from this process, as Sandgate's runtime is. bwrap, runc and
//! ssh are programs, and are started for each command: that is how they are used.

pub(crate) mod bwrap;
mod http;
pub(crate) mod python_runtime;
pub(crate) mod runc;
pub(crate) mod sandboxd;
pub(crate) mod ssh;

use std::{
    ffi::OsStr,
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A process that ends with the value, and with this process, however that ends.
#[derive(Debug)]
pub(crate) struct Daemon(Child);

const PATIENCE: Duration = Duration::from_secs(60);

// === impl Daemon ===

impl Daemon {
    /// Starts what `configure` adds to a command.
    fn start(program: impl AsRef<OsStr>, configure: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        // A release build does not unwind, so a benchmark that can't go on drops nothing.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        configure(&mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    /// Waits until it is of use.
    async fn until(&mut self, mut ready: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !ready() {
            let ended = self.0.try_wait().unwrap();
            assert!(ended.is_none(), "it ended at once: {ended:?}");
            assert!(begun.elapsed() < PATIENCE, "it does not get ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn until_it_listens(&mut self, port: u16) {
        self.until(|| TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that nobody had a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Runs a program to its end.
fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).status();
    let status = status.unwrap_or_else(|error| panic!("{command:?}: {error}: `scripts/need peers` brings it"));
    assert!(status.success(), "{command:?}: {status}");
}
