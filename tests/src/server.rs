//! The real server with its monitors and runtimes, started by a test in a state directory of its own.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixStream, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use sandgate::{Address, Client, Endpoint};
use tempfile::TempDir;

/// How a test wants its server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// More of the configuration file: top-level keys first, then tables.
    pub config: String,
    /// Run as this uid, with copies of the binaries that it can reach. Needs root.
    pub uid: Option<u32>,
    /// More flags.
    pub args: Vec<String>,
    /// Listen on a TCP port too.
    pub tcp: bool,
    /// A program, with arguments, that starts the server's command line.
    pub wrapper: Vec<OsString>,
    /// Where it writes its log, instead of to the test's stderr. Every server of the test adds to it.
    pub log: Option<PathBuf>,
}

/// A server. Killed when dropped, and its sandboxes removed.
pub struct Server {
    options: ServerOptions,
    dir: TempDir,
    cgroup_parent: String,
    child: Option<Child>,
    announced: String,
}

/// How long anything here may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);
static COUNT: AtomicU32 = AtomicU32::new(0);

// === impl Server ===

impl Server {
    /// A server as it is out of the box, on a Unix socket.
    pub async fn start() -> Self {
        Self::start_with(ServerOptions::default()).await
    }

    /// A server with more configuration.
    pub async fn with_config(config: &str) -> Self {
        Self::start_with(ServerOptions {
            config: config.to_owned(),
            ..ServerOptions::default()
        })
        .await
    }

    /// A server that a test wants to be special.
    pub async fn start_with(options: ServerOptions) -> Self {
        let dir = tempfile::Builder::new().prefix("sandgate-").tempdir().unwrap();
        let cgroup_parent = format!(
            "/sandgate-test-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let mut server = Self {
            options,
            dir,
            cgroup_parent,
            child: None,
            announced: String::new(),
        };
        server.prepare();
        server.restart().await;
        server
    }

    fn prepare(&self) {
        let listen = if self.options.tcp { "\"127.0.0.1:0\"" } else { "" };
        let cgroup_parent = match self.is_local() {
            true => format!("cgroup_parent = \"{}\"\n", self.cgroup_parent),
            false => String::new(),
        };
        let config = format!("listen = [{listen}]\n{cgroup_parent}{}", self.options.config);
        fs::write(self.config(), config).unwrap();
        fs::set_permissions(self.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(self.state_dir()).unwrap();
        fs::set_permissions(self.state_dir(), fs::Permissions::from_mode(0o700)).unwrap();
        if let Some(uid) = self.options.uid {
            for binary in [server_binary(), runtime_binary(), monitor_binary()] {
                let copy = self.dir.path().join(binary.file_name().unwrap());
                fs::copy(&binary, &copy).unwrap();
                fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
            }
            std::os::unix::fs::chown(self.state_dir(), Some(uid), Some(uid)).unwrap();
        }
    }

    /// Whether its sandboxes are on this machine.
    fn is_local(&self) -> bool {
        !self.options.config.contains("provider = ")
    }

    fn binary(&self, original: PathBuf) -> PathBuf {
        match self.options.uid {
            Some(_) => self.dir.path().join(original.file_name().unwrap()),
            None => original,
        }
    }

    /// The command that starts it.
    #[must_use]
    pub fn command(&self) -> Command {
        let server = self.binary(server_binary()).into_os_string();
        let mut words = self.options.wrapper.iter().cloned().chain([server]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .arg("--config")
            .arg(self.config())
            .arg("--state-dir")
            .arg(self.state_dir())
            .args(&self.options.args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env(
                "SANDGATE_LOG",
                std::env::var("SANDGATE_TEST_LOG").unwrap_or("warn".into()),
            )
            .current_dir(self.dir.path());
        if self.is_local() {
            command
                .env("SANDGATE_RUNTIME_BIN", self.binary(runtime_binary()))
                .env("SANDGATE_MONITOR_BIN", self.binary(monitor_binary()));
        }
        if let Some(uid) = self.options.uid {
            command.uid(uid).gid(uid).env("HOME", self.dir.path());
        }
        command
    }

    fn spawn(&self) -> Child {
        let mut command = self.command();
        if let Some(log) = &self.options.log {
            command.stderr(fs::File::options().create(true).append(true).open(log).unwrap());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Starts it, if it does not run, and waits until it answers.
    pub async fn restart(&mut self) {
        if self.child.is_none() {
            let mut child = self.spawn();
            // The announcement says that it listens. The pipe is read to its end, so that nothing blocks.
            let mut announced = BufReader::new(child.stdout.take().unwrap());
            let mut text = String::new();
            // Its last line is a command to try.
            while announced.read_line(&mut text).unwrap() > 0 && !text.contains("\ntry: ") {}
            std::thread::spawn(move || announced.read_to_end(&mut Vec::new()));
            assert!(!text.is_empty(), "the server ended at once: {:?}", child.wait());
            (self.child, self.announced) = (Some(child), text);
        }
        drop(self.client().await);
    }

    /// Starts it, if it does not run, and waits for nothing.
    pub fn begin(&mut self) {
        if self.child.is_none() {
            let mut child = self.spawn();
            let mut announced = child.stdout.take().unwrap();
            std::thread::spawn(move || announced.read_to_end(&mut Vec::new()));
            self.child = Some(child);
        }
    }

    /// The state directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// The configuration file.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("server.toml")
    }

    /// A directory of the test's own.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.state_dir().join("sandgate.sock")
    }

    /// What it said on stdout when it began to listen.
    #[must_use]
    pub fn announced(&self) -> &str {
        &self.announced
    }

    /// Its TCP address, as clients take it. Wants `ServerOptions::tcp`.
    #[must_use]
    pub fn tcp_address(&self) -> &str {
        let mut lines = self.announced.lines().map(str::trim);
        lines
            .find(|line| line.starts_with("http://"))
            .expect("it listens on TCP")
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// A client over the Unix socket.
    pub async fn client(&self) -> Client {
        let endpoint = Endpoint::new(Address::Unix(self.socket()));
        let begun = Instant::now();
        loop {
            match Client::connect(endpoint.clone()).await {
                Ok(client) => return client,
                Err(error) if begun.elapsed() > PATIENCE => panic!("the server does not answer: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// `sandgate` with this server's address.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> Command {
        // Tests that a shell runs in the background ignore SIGINT, and their children would too.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=INT")
            .arg(cli_binary())
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.dir.path())
            .env("SANDGATE_ADDR", format!("unix://{}", self.socket().display()));
        command
    }

    /// Kills it, as `kill -9` does. Its sandboxes live on.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Tells it to stop and waits for its end.
    pub fn stop(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().expect("the server runs");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        child.wait().unwrap()
    }

    /// Directory of a sandbox.
    #[must_use]
    pub fn sandbox_dir(&self, name: &str) -> PathBuf {
        self.state_dir().join("sandboxes").join(name)
    }

    /// PID 1 of a sandbox, as the host sees it.
    #[must_use]
    pub fn sandbox_pid(&self, name: &str) -> i32 {
        let status = sandgate_monitor::Status::read(&self.sandbox_dir(name)).unwrap();
        status.running.expect("the sandbox runs").pid
    }

    /// The monitor of a sandbox's directory: whoever listens on its socket. `None`: nobody does.
    #[must_use]
    pub fn monitor_pid(&self, dir: &Path) -> Option<rustix::process::Pid> {
        let monitor = UnixStream::connect(dir.join("control")).ok()?;
        Some(rustix::net::sockopt::socket_peercred(&monitor).ok()?.pid)
    }

    /// Everything that is left of sandboxes: processes, cgroups, directories. Mounts of the host are none of theirs.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let mut left = self.processes();
        for dir in ["sandboxes", "new", "trash", "damaged"] {
            for entry in fs::read_dir(self.state_dir().join(dir)).into_iter().flatten().flatten() {
                left.push(entry.path().display().to_string());
            }
        }
        left.extend(self.cgroups());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = self.dir.path().display().to_string();
        left.extend(mounts.lines().filter(|line| line.contains(&ours)).map(str::to_owned));
        left
    }

    /// Monitors of this server, and runtimes whose monitor is one of them or gone.
    fn processes(&self) -> Vec<String> {
        let ours = self.state_dir().display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            if command.contains("sandgate-monitor") && command.contains(&ours) {
                found.push(format!("{pid}: {command}"));
            }
        }
        found
    }

    /// Groups of sandboxes in every cgroup tree.
    fn cgroups(&self) -> Vec<String> {
        let parent = self.cgroup_parent.trim_start_matches('/');
        let mut found = Vec::new();
        let mut look = vec![PathBuf::from("/sys/fs/cgroup")];
        while let Some(dir) = look.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                if dir.ends_with(parent) {
                    found.push(entry.path().display().to_string());
                } else {
                    look.push(entry.path());
                }
            }
        }
        found
    }

    /// Waits until nothing is left.
    pub async fn until_nothing_is_left(&self) {
        let begun = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "left behind: {left:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for dir in ["sandboxes", "new"] {
            for entry in fs::read_dir(self.state_dir().join(dir)).into_iter().flatten().flatten() {
                // The path of a socket is short; that of a link to its directory is shorter.
                let link = self.dir.path().join("l");
                let _ = fs::remove_file(&link);
                let _ = std::os::unix::fs::symlink(entry.path(), &link);
                if let Ok(mut monitor) = UnixStream::connect(link.join("control")) {
                    let _ = monitor.set_read_timeout(Some(Duration::from_secs(10)));
                    let _ = monitor.write_all(b"\"remove\"\n");
                    let _ = monitor.read_to_end(&mut Vec::new());
                }
            }
        }
        // Monitors remove them behind their last word; those of a monitor that was killed stay.
        let begun = Instant::now();
        while !self.cgroups().is_empty() && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(10));
        }
        remove_empty_parents(self.cgroup_parent.trim_start_matches('/'));
    }
}

fn remove_empty_parents(name: &str) {
    let mut look = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = look.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_name() == name {
                let _ = fs::remove_dir(entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                look.push(entry.path());
            }
        }
    }
}

/// `sandgate-server`: the one that `SANDGATE_TEST_SERVER_BIN` names, or the one that cargo built beside this test.
#[must_use]
pub fn server_binary() -> PathBuf {
    std::env::var_os("SANDGATE_TEST_SERVER_BIN").map_or_else(|| built("sandgate-server"), PathBuf::from)
}

/// `sandgate`, as cargo built it beside this test.
#[must_use]
pub fn cli_binary() -> PathBuf {
    built("sandgate")
}

/// The static runtime.
#[must_use]
pub fn runtime_binary() -> PathBuf {
    crate::binary()
}

/// The static monitor, beside the runtime.
#[must_use]
pub fn monitor_binary() -> PathBuf {
    crate::binary().with_file_name("sandgate-monitor")
}

fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Tests are one directory below the programs, a benchmark is one of them.
    let mut dir = test.parent().unwrap();
    if dir.ends_with("deps") {
        dir = dir.parent().unwrap();
    }
    let binary = dir.join(name);
    assert!(
        binary.exists(),
        "{} is not there: `make test` builds it",
        binary.display()
    );
    binary
}
