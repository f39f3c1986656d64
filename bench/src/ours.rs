//! Sandgate as its users have it: the server, a client on TCP, and a sandbox.

use std::{fs, path::PathBuf};

use sandgate::{Address, Client, Endpoint, Sandbox};
use sandgate_tests::server::{Server, ServerOptions};

/// A server on this machine. Its sandboxes end with the value.
pub(crate) struct Ours {
    pub(crate) server: Server,
    pub(crate) client: Client,
    pub(crate) sandbox: Sandbox,
    /// The same one by the server's Unix socket, which is what clients of the same machine take by themselves.
    pub(crate) nearby: Sandbox,
}

// === impl Ours ===

impl Ours {
    pub(crate) async fn start() -> Self {
        let server = Server::start_with(ServerOptions {
            tcp: true,
            // One more is made and measured where there are a thousand.
            config: "[limits]\nsandboxes = 1100\n".into(),
            ..ServerOptions::default()
        })
        .await;
        let token = fs::read_to_string(server.state_dir().join("token")).unwrap();
        let address: Address = server.tcp_address().parse().unwrap();
        let endpoint = Endpoint::new(address).with_token(token.trim()).unwrap();
        let client = Client::connect(endpoint).await.unwrap();
        let sandbox = client.create().name("bench").send().await.unwrap().sandbox;
        let nearby = server.client().await.sandbox(sandbox.name());
        Self {
            server,
            client,
            sandbox,
            nearby,
        }
    }

    /// The runtime of the sandbox, as the host sees it.
    pub(crate) fn runtime_pid(&self) -> i32 {
        self.server.sandbox_pid("bench")
    }

    /// Where the server reaches it.
    pub(crate) fn runtime_socket(&self) -> PathBuf {
        self.server.sandbox_dir("bench").join("socket")
    }

    /// A command line that runs a program in the sandbox's namespaces without Sandgate.
    pub(crate) fn beside(&self, program: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new("nsenter");
        command
            .arg(format!("--target={}", self.runtime_pid()))
            .args(["--user", "--mount", "--pid", "--"])
            .args(program);
        command
    }

    /// A place for files of the benchmark's own.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.server.dir().join(name)
    }
}
