//! Where the server is, and with which token: variables, flags, the state directory; and what is said when it is not
//! there.

use std::fs;

use sandgate_tests::server::ServerOptions;
use serde_json::{Value, json};
use tokio::process::Command;

use super::stage::{Did, Stage, finish};

const START_ONE: &str = "  Start a server with `sandgate-server`, or `make run` in a clone of Sandgate; or say where it is: \
                         --addr or SANDGATE_ADDR.\n";

async fn tcp() -> Stage {
    let options = ServerOptions {
        tcp: true,
        ..ServerOptions::default()
    };
    Stage::with(options).await
}

/// A command with these variables and no other of Sandgate's.
fn with(stage: &Stage, args: &[&str], vars: &[(&str, &str)]) -> Command {
    let mut command = stage.command(args);
    command
        .env_remove("SANDGATE_ADDR")
        .env("SANDGATE_STATE_DIR", stage.path("no-state"));
    command.envs(vars.iter().copied());
    command
}

async fn ls(stage: &Stage, args: &[&str], vars: &[(&str, &str)]) -> Did {
    finish(with(stage, &[&["-o", "json", "ls"], args].concat(), vars)).await
}

fn is_empty_list(did: &Did) -> bool {
    did.code == Some(0) && serde_json::from_slice::<Value>(&did.out).unwrap() == json!({"sandboxes": []})
}

#[tokio::test]
async fn tcp_wants_the_token() {
    let stage = tcp().await;
    let addr = stage.server.tcp_address();
    let state = stage.server.state_dir();
    let state = state.to_str().unwrap();
    let token = fs::read_to_string(stage.server.state_dir().join("token")).unwrap();
    let token = token.trim();
    for (args, vars) in [
        (&[][..], &[("SANDGATE_ADDR", addr), ("SANDGATE_TOKEN", token)][..]),
        (
            &["--addr", addr, "--token", token],
            &[("SANDGATE_ADDR", "unix:///nowhere"), ("SANDGATE_TOKEN", "wrong")],
        ),
        // The token of the state directory, and the socket there, which wants none.
        (&["--addr", addr], &[("SANDGATE_STATE_DIR", state)]),
        (&[], &[("SANDGATE_STATE_DIR", state)]),
    ] {
        let did = ls(&stage, args, vars).await;
        assert!(is_empty_list(&did), "{args:?} {vars:?}: {did:?}");
    }
    let hint = "  Give the server's token: --token or SANDGATE_TOKEN. It is in the file `token` of the server's state \
                directory.\n";
    for (token, says) in [
        ("", "a token is wanted on TCP"),
        ("wrong", "the token is not this server's"),
    ] {
        let vars = [("SANDGATE_ADDR", addr), ("SANDGATE_TOKEN", token)];
        let did = finish(with(&stage, &["ls"], &vars)).await;
        assert_eq!((did.code, did.text().as_str()), (Some(125), ""));
        let told = did.told();
        assert!(told.starts_with(&format!("sandgate: {says}")), "{told}");
        assert!(
            told.ends_with(&format!("(UNAUTHENTICATED, request ID)\n{hint}")),
            "{told}"
        );
        let did = ls(&stage, &[], &vars).await;
        let json: Value = serde_json::from_str(&did.err).unwrap();
        assert_eq!(
            (did.code, &json["error"]["reason"]),
            (Some(125), &json!("UNAUTHENTICATED"))
        );
    }
    let did = ls(&stage, &[], &[("SANDGATE_ADDR", addr), ("SANDGATE_TOKEN", "a\nb")]).await;
    let json: Value = serde_json::from_str(&did.err).unwrap();
    assert_eq!(
        (did.code, &json["error"]["message"]),
        (Some(64), &json!("bad token: it has characters that no token has"))
    );
    // Everything works over TCP as well, also what streams.
    let vars = [("SANDGATE_ADDR", addr), ("SANDGATE_TOKEN", token)];
    assert_eq!(
        finish(with(&stage, &["run", "--", "echo", "hello"], &vars))
            .await
            .text(),
        "hello\n"
    );
}

#[tokio::test]
async fn a_token_that_can_not_be_read_is_told() {
    let stage = tcp().await;
    let state = stage.path("odd");
    fs::create_dir_all(state.join("token")).unwrap();
    let vars = [
        ("SANDGATE_STATE_DIR", state.to_str().unwrap()),
        ("SANDGATE_ADDR", stage.server.tcp_address()),
    ];
    let did = finish(with(&stage, &["ls"], &vars)).await;
    assert_eq!(did.code, Some(125));
    assert!(
        did.err.starts_with(&format!(
            "sandgate: can't read the token in {}/token: ",
            state.display()
        )),
        "{did:?}"
    );
    assert!(
        did.err
            .ends_with("\n  Run as the user who owns it, or give the token: --token or SANDGATE_TOKEN.\n"),
        "{did:?}"
    );
}

#[tokio::test]
async fn no_server_is_told_by_every_command() {
    let mut stage = Stage::empty().await;
    stage.write("file", "x");
    let socket = stage.server.socket().display().to_string();
    stage.server.kill();
    let told = format!("sandgate: nothing listens on unix://{socket}\n{START_ONE}");
    for line in [
        "create demo",
        "run -- true",
        "exec demo -- true",
        "shell demo",
        "follow demo x",
        "ps demo",
        "kill demo x",
        "ls",
        "get demo",
        "watch",
        "update demo --ttl 1h",
        "suspend demo",
        "resume demo",
        "rm demo",
        "cp file demo:x",
        "cp demo:x file",
        "files ls demo:.",
        "files cat demo:x",
        "files stat demo:x",
        "files find demo:.",
        "files grep demo:. x",
        "files edit demo:x --old a --new b",
        "files rm demo:x",
        "files mv demo:x demo:y",
        "files mkdir demo:x",
    ] {
        stage.refused(&line.split(' ').collect::<Vec<_>>(), 125, &told).await;
    }
}

#[tokio::test]
async fn bad_addresses_are_told() {
    let stage = Stage::empty().await;
    for (addr, code, told) in [
        (
            "nonsense",
            64,
            "bad address \"nonsense\": the port is missing; expected http://HOST:PORT or unix:///PATH\n",
        ),
        (
            "unix://relative",
            64,
            "bad address \"unix://relative\": the path of a Unix socket must be absolute; expected http://HOST:PORT or \
             unix:///PATH\n",
        ),
        (
            "https://localhost:1",
            64,
            "bad address \"https://localhost:1\": this client speaks no TLS; expected http://HOST:PORT or unix:///PATH\n",
        ),
        (
            "http://127.0.0.1:1",
            125,
            &format!("nothing listens on http://127.0.0.1:1\n{START_ONE}"),
        ),
        (
            "unix:///no/such/socket",
            125,
            &format!("nothing listens on unix:///no/such/socket\n{START_ONE}"),
        ),
    ] {
        let told = format!("sandgate: {told}");
        stage.refused(&["ls", "--addr", addr], code, &told).await;
        let did = finish(with(&stage, &["ls"], &[("SANDGATE_ADDR", addr)])).await;
        assert_eq!((did.code, did.err), (Some(code), told));
    }
    // A socket of something else.
    let path = stage.path("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        use std::io::Write as _;
        for connection in listener.incoming().flatten() {
            _ = (&connection).write_all(b"220 no Sandgate\r\n");
        }
    });
    let did = finish(with(
        &stage,
        &["ls"],
        &[("SANDGATE_ADDR", &format!("unix://{}", path.display()))],
    ))
    .await;
    assert_eq!((did.code, did.text().as_str()), (Some(125), ""), "{did:?}");
    assert!(
        did.err.starts_with("sandgate: ") && !did.err.contains("panicked"),
        "{did:?}"
    );
}
