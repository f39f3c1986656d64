//! The HTTP API that agent-sandbox's python-runtime has, served by an application of ours of the same shape.

use std::process::Stdio;

use bytes::Bytes;
use sandgate_bench::worker::{directory, tool};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Daemon, free_port, http::Http};
use crate::work::NOTHING;

pub(crate) struct PythonRuntime {
    _daemon: Daemon,
    base: TempDir,
    http: Http,
}

const BOUNDARY: &str = "------------------------sandgate";

// === impl PythonRuntime ===

impl PythonRuntime {
    pub(crate) async fn start() -> Self {
        let base = tempfile::tempdir().unwrap();
        let port = free_port();
        let app = directory().join("peers");
        let mut daemon = Daemon::start(tool("python-runtime", "python"), |command| {
            command
                .args([
                    "-m",
                    "uvicorn",
                    "python_runtime:app",
                    "--host",
                    "127.0.0.1",
                    "--app-dir",
                ])
                .arg(app)
                .args([
                    "--port",
                    &port.to_string(),
                    "--timeout-keep-alive",
                    "3600",
                    // As its image starts it.
                    "--log-level",
                    "trace",
                ])
                .stderr(Stdio::null())
                .env("SANDBOX_BASE_DIR", base.path())
                .env("PYTHONDONTWRITEBYTECODE", "1")
        });
        daemon.until_it_listens(port).await;
        Self {
            _daemon: daemon,
            base,
            http: Http::connect(port).await,
        }
    }

    pub(crate) async fn run(&self) {
        let command = json!({"command": NOTHING.join(" ")}).to_string();
        let answer = self.http.post("/execute", "application/json", command.into()).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["exit_code"], 0, "{answer}");
    }

    /// Puts a file where it is read from.
    pub(crate) fn give(&self, name: &str, content: &[u8]) {
        std::fs::write(self.base.path().join(name), content).unwrap();
    }

    pub(crate) async fn download(&self, name: &str, size: usize) {
        assert_eq!(self.http.get(&format!("/download/{name}")).await, size);
    }

    /// Uploads what `form` made.
    pub(crate) async fn upload(&self, form: Bytes) {
        let content_type = format!("multipart/form-data; boundary={BOUNDARY}");
        self.http.post("/upload", &content_type, form).await;
    }
}

/// A file as a form of a browser has it.
pub(crate) fn form(name: &str, content: &[u8]) -> Bytes {
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let foot = format!("\r\n--{BOUNDARY}--\r\n");
    [head.as_bytes(), content, foot.as_bytes()].concat().into()
}
