//! The program as whoever starts it meets it: its command line, what it prints, how it ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::{SocketAddr, TcpStream},
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixDatagram, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A server that does not outlive its test.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    addr: SocketAddr,
    socket: PathBuf,
}

impl Server {
    /// Starts it and waits until it has said where it listens.
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line.trim().to_owned()
        };
        assert!(line().contains("listens on"));
        let addr = line().strip_prefix("http://").unwrap().parse().unwrap();
        let socket = line().strip_prefix("unix://").unwrap().into();
        Self {
            child,
            out,
            addr,
            socket,
        }
    }

    /// Ends it and gives its exit code and what it had yet to say.
    fn end(&mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let code = self.child.wait().unwrap().code();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        (code, rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The program with nothing of this machine's environment, at home in `dir`.
fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandgate-server"));
    command
        .args(args)
        .env_clear()
        .env("HOME", dir)
        .env("SANDGATE_STATE_DIR", dir.join("state"))
        .env("SANDGATE_LISTEN", "127.0.0.1:0")
        // Nothing here makes a sandbox.
        .env("SANDGATE_RUNTIME_BIN", "/bin/true")
        .env("SANDGATE_MONITOR_BIN", "/bin/true")
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> (Output, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path(), args).output().unwrap();
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    (output, errors)
}

#[test]
fn an_address_that_others_reach_needs_a_chosen_token() {
    for addr in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7263"] {
        let (output, errors) = run(&["--listen", addr]);
        assert_eq!(output.status.code(), Some(64), "{addr}: {errors}");
        assert!(errors.contains("name its file in token_file"), "{addr}: {errors}");
        assert!(output.stdout.is_empty());
    }
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("chosen");
    let args = ["--listen", "0.0.0.0:0", "--token-file", token.to_str().unwrap()];
    for (text, wrong) in [(None, "No such file"), (Some("short"), "32 to 256")] {
        text.inspect(|text| fs::write(&token, text).unwrap());
        let output = command(dir.path(), &args).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(
            errors.contains(wrong) && errors.contains(token.to_str().unwrap()),
            "{errors}"
        );
    }
    fs::write(&token, "t".repeat(40)).unwrap();
    let args = [&args[..], &["--allowed-hosts", "sandgate.example"]].concat();
    let server = Server::start(command(dir.path(), &args));
    assert!(server.addr.ip().is_unspecified());
    // What is no gRPC is refused later, in another way.
    for (host, code) in [
        ("evil.example", 403),
        ("sandgate.example", 400),
        ("192.0.2.7:1", 400),
        ("localhost:1", 400),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", server.addr.port())).unwrap();
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{host}: {answer}");
    }
    assert!(!dir.path().join("state/token").exists(), "none is made");
}

#[test]
fn what_can_not_be_used_for_a_cluster_is_a_mistake() {
    for (args, expected) in [
        (
            &["--kubernetes-kubeconfig", "/no/such"][..],
            "flag --kubernetes-kubeconfig: kubernetes.kubeconfig: ",
        ),
        (
            &[
                "--kubernetes-direct-url",
                "https://x.example",
                "--kubernetes-direct-ca-file",
                "/no/such",
            ],
            "flag --kubernetes-direct-ca-file: kubernetes.direct.ca_file: can't read /no/such",
        ),
    ] {
        let (output, errors) = run(&[&["--provider", "kubernetes", "--log", "off"], args].concat());
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(expected), "{errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn keys_are_made_and_published_and_switched() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    let keys = keys.to_str().unwrap();
    let run = |args: &[&str]| {
        // Not even a home is needed.
        let mut command = command(dir.path(), &[&["keys"], args].concat());
        let output = command.env_clear().output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap() + &errors,
        )
    };
    assert_eq!(run(&["jwks", keys]).0, Some(1));
    let (code, said) = run(&["new", keys]);
    assert!(code == Some(0) && said.contains("key-1.pem"), "{said}");
    let (code, said) = run(&["new", keys, "spare"]);
    assert!(
        code == Some(0) && said.contains(&format!("keys use {keys} spare")),
        "{said}"
    );
    let (code, jwks) = run(&["jwks", keys]);
    assert_eq!((code, jwks.matches("Ed25519").count()), (Some(0), 2), "{jwks}");
    assert_eq!(run(&["use", keys, "spare"]).0, Some(0));
    assert_eq!(fs::read_to_string(dir.path().join("keys/current")).unwrap(), "spare\n");
    assert_eq!(run(&["use", keys, "nothing"]).0, Some(1));
    assert_eq!(run(&["use", keys]).0, Some(64));
}

#[test]
fn the_doctor_says_what_is_missing() {
    let (output, errors) = run(&["doctor"]);
    let said = String::from_utf8(output.stdout).unwrap();
    // `true` is no runtime.
    assert_eq!(output.status.code(), Some(1), "{said}{errors}");
    assert!(said.contains("ok       state directory: "), "{said}");
    assert!(
        said.contains("problem  template default: no sandbox can be made: "),
        "{said}"
    );

    let args = [
        "doctor",
        "--provider",
        "kubernetes",
        "--kubernetes-kubeconfig",
        "/no/such",
    ];
    let (output, errors) = run(&args);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}{errors}");
    for line in ["warning  keys: there are none", "problem  cluster: ", "/no/such"] {
        assert!(said.contains(line), "{line}: {said}");
    }

    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(command(dir.path(), &[]));
    let output = command(dir.path(), &["doctor"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let busy = format!("(pid {}), so no sandbox is made here; ", server.child.id());
    assert!(said.contains(&busy) && said.contains("`sandgate doctor`"), "{said}");
}

#[test]
fn a_wrong_command_line_is_64_and_help_is_0() {
    for wrong in [
        &["--listen", "nonsense"][..],
        &["--no-such-flag"],
        &["surplus"],
        &["--config", "/no/such/file"],
    ] {
        let (output, errors) = run(wrong);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}: {errors}");
        assert!(
            ["Usage", "expected", "can't read"]
                .iter()
                .any(|word| errors.contains(word)),
            "{wrong:?}: {errors}"
        );
    }
    let (output, _) = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    for word in [
        "--listen",
        "127.0.0.1:7263",
        "--state-dir",
        "SANDGATE_",
        "sandgate run -- echo hello",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
}

#[test]
fn a_mistake_in_the_file_is_64_and_all_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.toml");
    fs::write(&file, "listne = []\n[template.default]\nmemory = 5\n").unwrap();
    for subcommand in [&["config"][..], &[]] {
        let args = [&["--config", file.to_str().unwrap()], subcommand].concat();
        let output = command(dir.path(), &args).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{errors}");
        for expected in [
            format!(
                "sandgate-server: {}:1: listne: unknown key; did you mean \"listen\"?",
                file.display()
            ),
            format!(
                "sandgate-server: {}:3: template.default.memory: expected a size",
                file.display()
            ),
        ] {
            assert!(errors.contains(&expected), "{expected}\n{errors}");
        }
    }
    assert!(!dir.path().join("state").exists(), "nothing was made");
}

#[test]
fn what_the_file_names_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("server.toml");
    for (text, args, expected) in [
        (
            "\n[template.x]\nroot = \"rootfs\"\nrootfs = \"/no/such/dir\"",
            &[][..],
            &format!("{}:4: template.x.rootfs: /no/such/dir", file.display()),
        ),
        (
            "",
            &["--monitor-bin", "/no/such/file"],
            &"flag --monitor-bin: monitor_bin: can't use /no/such/file".to_owned(),
        ),
    ] {
        fs::write(&file, text).unwrap();
        let args = [&["--config", file.to_str().unwrap()], args].concat();
        let output = command(dir.path(), &args).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{errors}");
        assert!(errors.contains(expected), "{expected}\n{errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn config_prints_what_is_in_effect_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path(), &["config", "--log", "warn"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "log = \"warn\" # flag --log",
        "listen = [\"127.0.0.1:0\"] # environment SANDGATE_LISTEN",
        "sandboxes = 1000 # default",
        "[template.default]",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!dir.path().join("state").exists());
}

#[test]
fn an_address_in_use_is_said_plainly() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = holder.local_addr().unwrap().to_string();
    let (output, errors) = run(&["--listen", &addr]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains(&format!("can't listen on {addr}")), "{errors}");
}

#[test]
fn it_says_where_it_listens_and_ends_in_order() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        // Found by its name: the first command is one that works as it stands.
        fs::write(dir.path().join("sandgate"), "").unwrap();
        let mut found = command(dir.path(), &[]);
        found.env("PATH", dir.path());
        let mut server = Server::start(found);
        TcpStream::connect(server.addr).unwrap();
        UnixStream::connect(&server.socket).unwrap();
        for (path, mode) in [("state", 0o700), ("state/token", 0o600), ("state/sandgate.sock", 0o600)] {
            let found = fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(found, mode, "{path}: {found:o}");
        }
        let (code, rest) = server.end(signal);
        assert_eq!(code, Some(0), "{signal:?}");
        let first = format!(
            "SANDGATE_ADDR=unix://{} sandgate run -- echo hello",
            server.socket.display()
        );
        assert!(rest.contains(&first), "names a first command: {rest}");
        assert!(!server.socket.exists());
        assert!(dir.path().join("state/token").exists());
    }
}

#[test]
fn the_first_command_names_a_command_line_that_is_not_on_the_path() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["sandgate-server", "sandgate"] {
        fs::copy(env!("CARGO_BIN_EXE_sandgate-server"), dir.path().join(name)).unwrap();
    }
    let mut beside = Command::new(dir.path().join("sandgate-server"));
    let like = command(dir.path(), &[]);
    beside.env_clear().stdin(Stdio::null());
    beside.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (code, said) = Server::start(beside).end(Signal::TERM);
    assert_eq!(code, Some(0));
    let full = format!("{} run -- echo hello", dir.path().join("sandgate").display());
    assert!(said.contains(&full), "{said}");
}

#[test]
fn a_second_server_is_told_who_is_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Server::start(command(dir.path(), &[]));
    let output = command(dir.path(), &[]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains(&format!("(pid {})", first.child.id())), "{errors}");
    assert!(output.stdout.is_empty());
    UnixStream::connect(&first.socket).unwrap();

    // A killed one leaves its socket and its token, and is in nobody's way.
    let token = fs::read(dir.path().join("state/token")).unwrap();
    first.end(Signal::KILL);
    assert!(first.socket.exists());
    let second = Server::start(command(dir.path(), &[]));
    UnixStream::connect(&second.socket).unwrap();
    assert_eq!(fs::read(dir.path().join("state/token")).unwrap(), token);
}

#[test]
fn a_state_directory_or_token_that_others_can_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Server::start(command(dir.path(), &[])));
    for (path, mode, mend) in [("state/token", 0o644, "chmod 600"), ("state", 0o755, "chmod 700")] {
        let path = dir.path().join(path);
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let output = command(dir.path(), &[]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(&format!("{mend} {}", path.display())), "{errors}");
        fs::set_permissions(&path, before).unwrap();
    }
    Server::start(command(dir.path(), &[]));
}

#[test]
fn a_state_directory_with_a_long_path_works() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("d".repeat(150));
    let server = Server::start(command(dir.path(), &["--state-dir", long.to_str().unwrap()]));
    assert!(server.socket.as_os_str().len() > 150);
    assert!(server.socket.exists());
}

#[test]
fn systemd_is_told_when_it_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let systemd = UnixDatagram::bind(&path).unwrap();
    let mut start = command(dir.path(), &[]);
    start.env("NOTIFY_SOCKET", &path);
    let mut server = Server::start(start);
    let mut word = [0; 64];
    let len = systemd.recv(&mut word).unwrap();
    assert_eq!(&word[..len], b"READY=1");
    server.end(Signal::TERM);
    let len = systemd.recv(&mut word).unwrap();
    assert_eq!(&word[..len], b"STOPPING=1");
}

#[test]
fn the_log_is_json_where_no_person_reads_it_and_names_the_request() {
    let dir = tempfile::tempdir().unwrap();
    let mut start = command(dir.path(), &["--log", "debug"]);
    start.stderr(Stdio::piped());
    let mut server = Server::start(start);
    let mut stream = TcpStream::connect(server.addr).unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: evil.example\r\nx-request-id: my-id\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, request).unwrap();
    stream.read_to_string(&mut String::new()).unwrap();
    server.end(Signal::TERM);
    let mut log = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(
        log.lines().all(|line| line.starts_with('{') && line.ends_with('}')),
        "{log}"
    );
    let line = log.lines().find(|line| line.contains("refused:")).unwrap();
    assert!(line.contains("\"id\":\"my-id\""), "{line}");
}
