//! A server, a directory to work in, and what a command did there.

use std::{
    fs,
    path::PathBuf,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sandgate_tests::server::{Server, ServerOptions};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// Nothing here takes this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A server, and a directory to work in.
pub(crate) struct Stage {
    pub(crate) server: Server,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Did {
    /// `None`: a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

/// A command that runs, with what it has printed so far.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    seen: Vec<u8>,
}

// === impl Stage ===

impl Stage {
    /// A server without sandboxes.
    pub(crate) async fn empty() -> Self {
        Self::with(ServerOptions::default()).await
    }

    /// A server with the sandbox `demo`.
    pub(crate) async fn new() -> Self {
        let stage = Self::empty().await;
        assert_eq!(stage.ok(&["create", "demo"]).await, "demo\n");
        stage
    }

    /// A server that a test wants to be special.
    pub(crate) async fn with(options: ServerOptions) -> Self {
        let server = Server::start_with(options).await;
        fs::create_dir(server.dir().join("work")).unwrap();
        Self { server }
    }

    /// A file of the test's, which is also the command's working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.server.dir().join("work").join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// `sandgate` with these arguments.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::from(self.server.cli(args));
        command
            .current_dir(self.path(""))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs it to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Did {
        finish(self.command(args)).await
    }

    /// Runs it to its end with this on its stdin.
    pub(crate) async fn feed(&self, args: &[&str], input: &[u8]) -> Did {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feeding = async move {
            // It may have ended already, which its exit says better.
            _ = stdin.write_all(input).await;
        };
        let (output, ()) = in_time(async { tokio::join!(child.wait_with_output(), feeding) }).await;
        output.unwrap().into()
    }

    /// What it prints when it does well and has nothing to complain about.
    pub(crate) async fn ok(&self, args: &[&str]) -> String {
        self.run(args).await.ok(args)
    }

    /// The same as JSON.
    pub(crate) async fn json(&self, args: &[&str]) -> Value {
        let out = self.ok(&[&["-o", "json"], args].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{args:?}: {error}: {out}"))
    }

    /// The same as one JSON document a line, whatever the code.
    pub(crate) async fn events(&self, args: &[&str]) -> (Option<i32>, Vec<Value>) {
        let did = self.run(&[&["-o", "json"], args].concat()).await;
        assert_eq!(did.err, "", "{args:?}");
        (did.code, lines(&did.out))
    }

    /// It fails with this code and tells this, and nothing on stdout; with `-o json` the same, as one object.
    pub(crate) async fn refused(&self, args: &[&str], code: i32, told: &str) {
        let did = self.run(args).await;
        assert_eq!(
            (did.code, did.text().as_str(), did.told().as_str()),
            (Some(code), "", told),
            "{args:?}"
        );
        let did = self.run(&[&["-o", "json"], args].concat()).await;
        assert_eq!((did.code, did.text().as_str()), (Some(code), ""), "{args:?}");
        let json: Value = serde_json::from_str(&did.err).unwrap_or_else(|error| panic!("{args:?}: {error}: {did:?}"));
        let error = &json["error"];
        let plain = told.replace("\n  ", "\n");
        assert!(plain.contains(error["message"].as_str().unwrap()), "{args:?}: {error}");
        for key in ["reason", "field", "hint"] {
            let named = error[key].as_str().is_none_or(|text| told.contains(text));
            assert!(named, "{args:?}: {key} of {error} is not in {told}");
        }
        assert_eq!(error["request_id"].is_string(), told.contains("request ID"), "{error}");
    }

    /// Begins it, to look at it while it runs.
    pub(crate) fn begin(&self, args: &[&str]) -> Running {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        Running {
            stdin: child.stdin.take(),
            stdout: child.stdout.take().unwrap(),
            seen: Vec::new(),
            child,
        }
    }

    /// Runs a script in `demo`, which must do well.
    pub(crate) async fn sh(&self, script: &str) -> String {
        self.ok(&["exec", "demo", "--", "sh", "-c", script]).await
    }

    /// Waits until no command of `demo` is alive.
    pub(crate) async fn until_idle(&self) {
        until("a command is alive", async || {
            self.json(&["ps", "demo", "--alive"]).await["execs"]
                .as_array()
                .unwrap()
                .is_empty()
        })
        .await;
    }
}

// === impl Did ===

impl Did {
    /// What it printed, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).unwrap()
    }

    /// What it told on stderr, with `ID` for the request's.
    pub(crate) fn told(&self) -> String {
        let mut parts = self.err.split("request ");
        let mut told = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_hexdigit() && c != '-').unwrap_or(0);
            let id = if part[..end].contains('-') { "ID" } else { &part[..end] };
            told.extend(["request ", id, &part[end..]]);
        }
        told
    }

    fn ok(self, args: &[&str]) -> String {
        assert_eq!(
            (self.code, self.err.as_str()),
            (Some(0), ""),
            "{args:?}: {}",
            self.text()
        );
        self.text()
    }
}

impl From<Output> for Did {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: output.stdout,
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

// === impl Running ===

impl Running {
    /// Waits until it has printed this.
    pub(crate) async fn until(&mut self, text: &str) {
        let begun = Instant::now();
        while !String::from_utf8_lossy(&self.seen).contains(text) {
            let mut chunk = [0; 4096];
            let left = PATIENCE.saturating_sub(begun.elapsed());
            let read = timeout(left, self.stdout.read(&mut chunk)).await;
            let seen = String::from_utf8_lossy(&self.seen);
            match read
                .unwrap_or_else(|_| panic!("{text:?} does not come: {seen}"))
                .unwrap()
            {
                0 => panic!("it ended before {text:?}: {seen}"),
                read => self.seen.extend_from_slice(&chunk[..read]),
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().expect("it runs")).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    pub(crate) async fn write(&mut self, input: &[u8]) {
        in_time(self.stdin.as_mut().unwrap().write_all(input)).await.unwrap();
    }

    /// Closes its stdin and waits for its end.
    pub(crate) async fn end(mut self) -> Did {
        drop(self.stdin.take());
        self.end_with_stdin_open().await
    }

    /// Waits for its end.
    pub(crate) async fn end_with_stdin_open(mut self) -> Did {
        in_time(self.stdout.read_to_end(&mut self.seen)).await.unwrap();
        let mut did = Did::from(in_time(self.child.wait_with_output()).await.unwrap());
        did.out = self.seen;
        did
    }
}

/// Runs a command to its end.
/// Its stdout is where it was put: `output` would take it away.
pub(crate) async fn finish(mut command: Command) -> Did {
    let child = command.spawn().unwrap();
    in_time(child.wait_with_output()).await.unwrap().into()
}

/// Fails what hangs.
pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("it hangs"))
}

/// Waits until it holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "after all this time {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One JSON document a line.
pub(crate) fn lines(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// The fields of an object, sorted.
pub(crate) fn fields(value: &Value) -> Vec<&str> {
    let object = value.as_object().unwrap_or_else(|| panic!("no object: {value}"));
    object.keys().map(String::as_str).collect()
}

/// Bytes of every kind, the same each time.
pub(crate) fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}
