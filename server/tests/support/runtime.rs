//! A real runtime as a process of its own, without a sandbox around it.

use std::{
    env,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use sandgate_proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// It ends with the value.
pub(crate) struct Runtime {
    dir: TempDir,
    child: Child,
}

impl Runtime {
    /// Starts it, and connects to it.
    pub(crate) async fn start() -> (Self, RuntimeServiceClient<Channel>) {
        let binary = env::var_os("SANDGATE_RUNTIME_BIN").expect("SANDGATE_RUNTIME_BIN: run `make test`");
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        let child = Command::new(binary)
            .arg("--socket")
            .arg(dir.path().join("socket"))
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .arg("--cwd")
            .arg(dir.path().join("workspace"))
            .args(["--log", "warn"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut runtime = Self { dir, child };
        loop {
            if let Ok(client) = runtime.connect().await {
                return (runtime, client);
            }
            assert_eq!(runtime.child.try_wait().unwrap(), None, "the runtime ended at once");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn connect(&self) -> Result<RuntimeServiceClient<Channel>, tonic::transport::Error> {
        let path = self.socket();
        let connect = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://runtime");
        endpoint
            .connect_with_connector(connect)
            .await
            .map(RuntimeServiceClient::new)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Where commands begin.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// Pulls the plug.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
