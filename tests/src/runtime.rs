//! The real runtime as a process of its own.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use sandgate_proto::runtime::v1::{HelloRequest, runtime_service_client::RuntimeServiceClient};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::{cgroup::TestCgroup, procs::own_memory};

/// A client on one connection.
pub type Client = RuntimeServiceClient<Channel>;

/// How to start a runtime.
#[derive(Default)]
pub struct RuntimeOptions {
    /// Further arguments.
    pub args: Vec<OsString>,
    /// Give it cgroups.
    pub cgroups: bool,
    /// A program, with arguments, that starts the runtime's command line.
    pub wrapper: Vec<OsString>,
    /// Log everything there is to log, into this file.
    pub trace: Option<PathBuf>,
}

/// A runtime, and the directories it works in. It ends with the value.
pub struct Runtime {
    dir: TempDir,
    options: RuntimeOptions,
    child: Child,
    cgroup: Option<TestCgroup>,
}

/// As the server does: wide connection window, fixed stream window, never adaptive.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const PATIENCE: Duration = Duration::from_secs(30);

// === impl Runtime ===

impl Runtime {
    /// A runtime with the defaults, without cgroups.
    pub async fn start() -> Self {
        Self::start_with(RuntimeOptions::default()).await
    }

    /// A runtime with further arguments.
    pub async fn with_args<S: Into<OsString> + Copy>(args: &[S]) -> Self {
        let args = args.iter().map(|arg| (*arg).into()).collect();
        Self::start_with(RuntimeOptions {
            args,
            ..Default::default()
        })
        .await
    }

    /// A runtime that gives its execs cgroups, or does without them.
    pub async fn with_cgroups(cgroups: bool) -> Self {
        Self::start_with(RuntimeOptions {
            cgroups,
            ..Default::default()
        })
        .await
    }

    /// A runtime as described.
    pub async fn start_with(options: RuntimeOptions) -> Self {
        let dir = tempfile::Builder::new().prefix("sandgate-test-").tempdir().unwrap();
        // Commands that run as another user must get to their directory.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        let cgroup = options.cgroups.then(TestCgroup::new);
        let child = launch(dir.path(), &options, cgroup.as_ref());
        let mut runtime = Self {
            dir,
            options,
            child,
            cgroup,
        };
        runtime.wait_until_ready().await;
        runtime
    }

    /// A new connection.
    pub async fn connect(&self) -> Client {
        self.try_connect().await.expect("the runtime accepts connections")
    }

    /// A new connection, if the runtime is there.
    pub async fn try_connect(&self) -> Option<Client> {
        connect_to(self.socket()).await
    }

    /// The directory that commands begin in.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// The runtime's own directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The directory of its cgroups.
    #[must_use]
    pub fn cgroup(&self) -> &TestCgroup {
        self.cgroup.as_ref().expect("this runtime has cgroups")
    }

    /// Pulls the plug.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same directories.
    pub async fn restart(&mut self) {
        self.child = launch(self.dir.path(), &self.options, self.cgroup.as_ref());
        self.wait_until_ready().await;
    }

    /// Waits until it has ended by itself.
    pub async fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the runtime does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Memory of its own, in bytes: anonymous pages, as against those of the binary.
    #[must_use]
    pub fn own_memory(&self) -> u64 {
        own_memory(self.pid())
    }

    async fn wait_until_ready(&mut self) {
        let begun = Instant::now();
        loop {
            if let Some(mut client) = self.try_connect().await
                && client.hello(HelloRequest { generation: 1 }).await.is_ok()
            {
                return;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the runtime ended at once: {status}");
            }
            assert!(begun.elapsed() < PATIENCE, "the runtime does not answer");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection to whoever listens there, if somebody does.
pub async fn connect_to(path: PathBuf) -> Option<Client> {
    let endpoint = Endpoint::from_static("http://runtime")
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let connector = service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    endpoint
        .connect_with_connector(connector)
        .await
        .ok()
        .map(RuntimeServiceClient::new)
}

/// The static binary that `make test` built.
#[must_use]
pub fn binary() -> PathBuf {
    let path = env::var_os("SANDGATE_RUNTIME_BIN").expect("SANDGATE_RUNTIME_BIN names the runtime: run `make test`");
    let path = PathBuf::from(path);
    assert!(path.is_file(), "{} is missing: run `make runtime`", path.display());
    path
}

fn launch(dir: &Path, options: &RuntimeOptions, cgroup: Option<&TestCgroup>) -> Child {
    let mut words = options.wrapper.iter().cloned().chain([binary().into_os_string()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command.arg("--socket").arg(dir.join("socket"));
    command.arg("--state-dir").arg(dir.join("state"));
    command.arg("--cwd").arg(dir.join("workspace"));
    command
        .args(["--log", if options.trace.is_some() { "trace" } else { "warn" }])
        .args(&options.args);
    if let Some(trace) = &options.trace {
        command.stderr(std::fs::File::options().create(true).append(true).open(trace).unwrap());
    }
    if let Some(cgroup) = cgroup {
        command.arg("--cgroup").arg(&cgroup.unified);
        if let Some(memory) = &cgroup.memory {
            command.arg("--memory-cgroup").arg(memory);
        }
    }
    command.stdin(Stdio::null()).spawn().unwrap()
}
