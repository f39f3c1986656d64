//! What the docs say is true: their examples are run, their tables held against the programs, their links followed.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "docs/help.rs"]
mod help;
#[path = "docs/page.rs"]
mod page;
#[path = "docs/session.rs"]
mod session;

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use sandgate_proto::runtime::v1::HelloRequest;
use sandgate_tests::{
    Runtime, binary,
    server::{Server, ServerOptions, cli_binary},
};
use tokio::{io::AsyncWriteExt as _, process::Command};

use self::{
    help::Help,
    page::{Block, Request, anchors, blocks, blocks_of, first_word, pages, requests, root, table, words},
    session::{Around, is_like, replay},
};

const PATIENCE: Duration = Duration::from_secs(60);
/// Where examples put things. Tests use a directory of their own instead.
const EXAMPLE_DIR: &str = "/tmp/sandgate";
/// The state directory in examples.
const EXAMPLE_STATE: &str = "/var/lib/sandgate";
const CLI_PAGE: &str = "docs/cli.md";

#[tokio::test]
async fn the_session_in_the_readme_goes_as_shown() {
    replay_at_server(&blocks_of("README.md", "console")).await;
}

#[tokio::test]
async fn the_sessions_of_the_command_line_go_as_shown() {
    replay_at_server(&blocks_of(CLI_PAGE, "console")).await;
}

/// With a real server, `sandgate` on the PATH, and nothing else around.
async fn replay_at_server(blocks: &[Block]) {
    let server = Server::start().await;
    let here = tempfile::tempdir().unwrap();
    let bin = cli_binary().parent().unwrap().to_owned();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let socket = format!("unix://{}", server.socket().display());
    let around = Around {
        before: "exec 2>&1".to_owned(),
        ..Around::default()
    };
    replay(blocks, &around, |bash| {
        bash.current_dir(here.path())
            .env_remove("SANDGATE_TOKEN")
            .env("HOME", here.path())
            .env("PATH", &path)
            .env("SANDGATE_ADDR", &socket);
    })
    .await;
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn the_session_with_the_runtime_goes_as_shown() {
    let dir = tempfile::tempdir().unwrap();
    let mut blocks = blocks_of("docs/runtime.md", "console");
    for block in &mut blocks {
        block.text = block.text.replace(EXAMPLE_DIR, dir.path().to_str().unwrap());
    }
    let around = Around {
        after_background: format!("until [ -S {}/socket ]; do sleep 0.01; done", dir.path().display()),
        ..Around::default()
    };
    replay(&blocks, &around, |bash| {
        bash.env("RUNTIME", binary()).current_dir(root());
    })
    .await;
}

/// `make run` starts the server as it is; a test has it on a free port and in a directory of its own.
#[tokio::test]
async fn the_server_announces_itself_as_shown() {
    let server = Server::start_with(ServerOptions {
        tcp: true,
        ..Default::default()
    })
    .await;
    let shown = blocks_of("README.md", "text announcement").remove(0).text;
    let shown = shown
        .replace("http://127.0.0.1:7263", server.tcp_address())
        .replace(EXAMPLE_STATE, server.state_dir().to_str().unwrap());
    assert!(is_like(server.announced(), &shown), "{}\n{shown}", server.announced());
}

#[tokio::test]
async fn the_example_in_rust_runs_as_it_stands() {
    let source = page::read("client-rs/examples/first.rs");
    let (_, code) = source.split_once("\n\n").unwrap();
    let shown = blocks_of("README.md", "rust").remove(0);
    assert_eq!(shown.text, code, "{}", shown.place);
    let server = Server::start().await;
    let example = cli_binary().parent().unwrap().join("examples/first");
    assert!(example.exists(), "{}: `make test` builds it", example.display());
    let mut example = Command::new(example);
    example
        .env_clear()
        .env("SANDGATE_ADDR", format!("unix://{}", server.socket().display()))
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, example.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "one\ntwo\nSome(Code(3))\n");
    server.until_nothing_is_left().await;
}

#[tokio::test]
async fn requests_to_the_runtime_are_taken() {
    let mut count = 0;
    for page in pages() {
        let requests = requests(&page, "RuntimeService");
        count += requests.len();
        let runtime = Runtime::start().await;
        for Request { place, method, json } in requests {
            let json = json.replace(EXAMPLE_DIR, runtime.workspace().to_str().unwrap());
            let path = format!("sandgate.runtime.v1.RuntimeService/{method}");
            succeed(&place, &runtime.socket(), &path, &json).await;
        }
    }
    assert!(count > 10, "only {count} requests were found");
}

/// Each page has a server of its own, and the sandboxes that it names.
#[tokio::test]
async fn requests_to_the_server_are_taken() {
    let mut count = 0;
    for page in pages() {
        let requests = requests(&page, "SandboxService");
        if requests.is_empty() {
            continue;
        }
        count += requests.len();
        let server = Server::start().await;
        let client = server.client().await;
        let mut made = BTreeSet::new();
        for Request { place, method, json } in requests {
            let fields: serde_json::Value = serde_json::from_str(&json).unwrap();
            let named = fields.get("name").or(fields.get("sandbox"));
            if let Some(name) = named.and_then(serde_json::Value::as_str)
                && made.insert(name.to_owned())
                && method != "Create"
            {
                client.create().name(name).send().await.unwrap();
            }
            let path = format!("sandgate.v1.SandboxService/{method}");
            succeed(&place, &server.socket(), &path, &json).await;
        }
        for name in made {
            client.sandbox(name).delete().await.unwrap();
        }
        server.until_nothing_is_left().await;
    }
    assert!(count > 10, "only {count} requests were found");
}

#[test]
fn every_example_is_run() {
    for page in pages() {
        let is = |name: &str| page.ends_with(name);
        for Block { place, info, .. } in blocks(&page) {
            let run = match info.as_str() {
                "console" => is("README.md") || is(CLI_PAGE) || is("docs/runtime.md"),
                "rust" | "text announcement" => page == root().join("README.md"),
                // Read by server/tests/config.rs.
                "toml" => is("docs/server.md"),
                // By clients/python/tests: test_package.py, deepagents/test_docs.py.
                "python" => is("docs/python.md") || is("docs/deepagents.md"),
                other => other.strip_prefix("json ").is_some_and(|target| {
                    target.starts_with("RuntimeService/") || target.starts_with("SandboxService/")
                }),
            };
            assert!(run, "{place}: nobody runs a block of {info:?}");
        }
    }
}

#[test]
fn the_flags_are_those_of_the_runtime() {
    let entries = Help::of(&binary(), "").entries();
    assert!(entries.len() > 10, "{entries:?}");
    let code = |text: &str| match text {
        "" => String::new(),
        text => format!("`{text}`"),
    };
    let row = |entry: &help::Entry| {
        let default = code(entry.default.as_deref().unwrap_or_default());
        format!("| {} | {default} | {} |", code(&entry.name), entry.meaning)
    };
    same(&table("docs/runtime.md", "flags:"), entries.iter().map(row));
}

#[test]
fn the_commands_are_those_of_the_command_line() {
    let (program, all) = (cli_binary(), Help::of(&cli_binary(), ""));
    let below = Help::of(&program, "files");
    let row = |prefix: &str, (name, about): &(&str, &str)| format!("| `{prefix}{name}` | {about}. |");
    let (top, files) = (all.commands(), below.commands());
    assert!(top.len() > 15 && files.len() > 8, "{top:?} {files:?}");
    let rows = top
        .iter()
        .filter(|(name, _)| *name != "files")
        .map(|command| row("", command));
    let rows: Vec<String> = rows.chain(files.iter().map(|command| row("files ", command))).collect();
    same(&table(CLI_PAGE, "commands:"), rows.iter().cloned());
    for command in rows.iter().map(|row| first_word(row)) {
        let entries = Help::of(&program, command).entries();
        same(
            &table(CLI_PAGE, &format!("help: {command} -->")),
            entries.iter().map(help::Entry::row),
        );
    }
    let global = all.entries_of("Options of every command:");
    let on_page = table(CLI_PAGE, "global:");
    let names: Vec<&str> = on_page.iter().map(|row| first_word(row)).collect();
    assert_eq!(
        names,
        global.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>()
    );
    let status = |(status, when): (&str, &str)| format!("| {status} | {when} |");
    same(&table(CLI_PAGE, "exit:"), all.statuses().into_iter().map(status));
}

#[tokio::test]
async fn the_fields_are_those_of_the_command_line() {
    let server = Server::start().await;
    let run = |args: &[&str]| {
        let output = server.cli(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        output.stdout
    };
    run(&["create", "demo"]);
    run(&["exec", "demo", "true"]);
    let cases = [
        ("get demo", None),
        ("ps demo", Some("execs")),
        ("files stat demo:.", Some("files")),
    ];
    for (command, list) in cases {
        let args: Vec<&str> = command.split(' ').chain(["-o", "json"]).collect();
        let answer: serde_json::Value = serde_json::from_slice(&run(&args)).unwrap();
        let object = list.map_or(&answer, |list| &answer[list][0]).as_object().unwrap();
        let fields: BTreeSet<String> = object.keys().cloned().collect();
        let on_page: BTreeSet<String> = words(CLI_PAGE, &format!("fields: {command}")).into_iter().collect();
        assert_eq!(on_page, fields, "{command}");
    }
    run(&["rm", "demo"]);
    server.until_nothing_is_left().await;
}

#[test]
fn the_mechanisms_are_those_of_the_monitor() {
    let rows = table("docs/local.md", "mechanisms:");
    let on_page: Vec<&str> = rows.iter().map(|row| first_word(row)).collect();
    assert_eq!(on_page, sandgate_monitor::mechanism::ALL);
}

#[tokio::test]
async fn the_capabilities_are_those_of_hello() {
    let runtime = Runtime::start().await;
    let hello = runtime
        .connect()
        .await
        .hello(HelloRequest { generation: 1 })
        .await
        .unwrap()
        .into_inner();
    let rows = table("docs/runtime.md", "capabilities:");
    let on_page: Vec<&str> = rows.iter().map(|row| first_word(row)).collect();
    assert_eq!(on_page, hello.capabilities);
}

#[test]
fn links_lead_somewhere() {
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let found = anchors(&target).iter().any(|other| other == anchor);
                assert!(found, "{}: {link}", page.display());
            }
            seen += 1;
        }
    }
    assert!(seen > 10, "only {seen} links were found");
}

/// Compares rows, and shows the table as it should be.
fn same(on_page: &[String], expected: impl Iterator<Item = String>) {
    let expected: Vec<String> = expected.collect();
    assert!(
        on_page == expected,
        "the table is\n{}\nand should be\n{}",
        on_page.join("\n"),
        expected.join("\n")
    );
}

/// Sends a request with buf, as the docs tell people to, and sees that nothing in the answer failed.
async fn succeed(place: &str, socket: &Path, path: &str, json: &str) {
    let output = curl(socket, path, json).await;
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{place}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        !answer.contains("\"error\"") && !answer.contains("\"startFailure\""),
        "{place}: {answer}"
    );
}

async fn curl(socket: &Path, path: &str, json: &str) -> Output {
    let mut buf = Command::new("buf");
    buf.args([
        "curl",
        "--schema",
        ".",
        "--protocol",
        "grpc",
        "--http2-prior-knowledge",
        "-d",
        "@-",
    ])
    .arg("--unix-socket")
    .arg(socket)
    .arg(format!("http://localhost/{path}"));
    buf.current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut running = buf.spawn().expect("buf is there: run `make test`");
    running.stdin.take().unwrap().write_all(json.as_bytes()).await.unwrap();
    tokio::time::timeout(PATIENCE, running.wait_with_output())
        .await
        .expect("buf ends")
        .unwrap()
}
