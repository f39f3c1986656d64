//! The program as whoever starts it meets it: its command line, what it prints, how it ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A server that does not outlive its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandgate-server"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> (Output, String) {
    let output = command(args).output().unwrap();
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    (output, errors)
}

#[test]
fn an_address_that_others_reach_is_refused() {
    for addr in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7263"] {
        let (output, errors) = run(&["--listen", addr]);
        assert_eq!(output.status.code(), Some(64), "{addr}: {errors}");
        assert!(errors.contains("loopback"), "{addr}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_wrong_command_line_is_64_and_help_is_0() {
    for wrong in [&["--listen", "nonsense"][..], &["--no-such-flag"], &["surplus"]] {
        let (output, errors) = run(wrong);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}: {errors}");
        assert!(
            errors.contains("Usage") || errors.contains("expected"),
            "{wrong:?}: {errors}"
        );
    }
    let (output, _) = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("--listen") && help.contains("127.0.0.1:7263"), "{help}");
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
        let mut server = Server(
            command(&["--listen", "127.0.0.1:0"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut out = BufReader::new(server.0.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        let addr: SocketAddr = first.trim().rsplit_once("http://").unwrap().1.parse().unwrap();
        TcpStream::connect(addr).unwrap();

        kill_process(Pid::from_child(&server.0), signal).unwrap();
        assert_eq!(server.0.wait().unwrap().code(), Some(0), "{signal:?}");
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(
            rest.contains(&format!("http://{addr}")),
            "names a first command: {rest}"
        );
    }
}
