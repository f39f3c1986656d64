//! What the docs say is true: their examples are run, their tables held against the programs, their links followed.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use sandgate_proto::runtime::v1::HelloRequest;
use sandgate_server::Bound;
use sandgate_tests::{Runtime, binary};
use tokio::{io::AsyncWriteExt as _, process::Command, sync::oneshot};

/// A fenced block: what stands behind the fence, and the lines.
struct Block {
    place: String,
    info: String,
    text: String,
}

const PATIENCE: Duration = Duration::from_secs(60);
/// Where examples put things. Tests use a directory of their own instead.
const EXAMPLE_DIR: &str = "/tmp/sandgate";
const ANYTHING: char = '…';

#[tokio::test]
async fn the_session_in_the_readme_goes_as_shown() {
    let dir = tempfile::tempdir().unwrap();
    let session = blocks(&root().join("README.md"))
        .into_iter()
        .find(|block| block.info == "console")
        .unwrap();
    let steps = steps(&session.text.replace(EXAMPLE_DIR, dir.path().to_str().unwrap()));
    assert!(steps.len() > 4, "{}", session.place);
    let mark = "-- end of the step --";
    let mut script = String::from("trap 'kill $(jobs -p) 2>/dev/null' EXIT\n");
    for (command, _) in &steps {
        script.push_str(command);
        if command.ends_with('&') {
            // A person takes longer to type the next line.
            script.push_str(&format!(
                "\nuntil [ -S {}/socket ]; do sleep 0.01; done",
                dir.path().display()
            ));
        }
        script.push_str(&format!("\necho; echo '{mark}'\n"));
    }
    // It ends the runtime too, should something hang.
    let mut bash = Command::new("timeout");
    bash.args(["60", "bash", "-c", &script])
        .env("RUNTIME", binary())
        .current_dir(root())
        .stdin(Stdio::null());
    let output = bash.output().await.unwrap();
    let (out, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8_lossy(&output.stderr),
    );
    let answers: Vec<&str> = out.split(mark).collect();
    assert_eq!(answers.len(), steps.len() + 1, "it went wrong after:\n{out}\n{errors}");
    for ((command, shown), answer) in steps.iter().zip(answers) {
        assert!(
            is_like(answer, shown),
            "{command}\nis shown to answer\n{shown}\nand answers\n{answer}\n{errors}"
        );
    }
}

#[tokio::test]
async fn requests_to_the_runtime_are_taken() {
    let mut count = 0;
    for page in pages() {
        let requests = requests(&page, "RuntimeService");
        count += requests.len();
        let runtime = Runtime::start().await;
        let socket = runtime.socket();
        for (place, method, json) in requests {
            let json = json.replace(EXAMPLE_DIR, runtime.workspace().to_str().unwrap());
            let url = format!("http://runtime/sandgate.runtime.v1.RuntimeService/{method}");
            let output = curl(&["--unix-socket", socket.to_str().unwrap(), &url], &json).await;
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
    }
    assert!(count > 10, "only {count} requests were found");
}

#[tokio::test]
async fn requests_to_the_server_fit_the_contract() {
    let bound = Bound::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = bound.local_addr();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(bound.serve(async { _ = stopped.await }));
    let requests: Vec<_> = pages()
        .iter()
        .flat_map(|page| requests(page, "SandboxService"))
        .collect();
    assert!(!requests.is_empty());
    for (place, method, json) in requests {
        let output = curl(
            &[&format!("http://{address}/sandgate.v1.SandboxService/{method}")],
            &json,
        )
        .await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("\"code\": \"unimplemented\""), "{place}: {errors}");
    }
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
}

#[test]
fn every_example_is_run() {
    for page in pages() {
        for Block { place, info, .. } in blocks(&page) {
            let run = info
                .strip_prefix("json ")
                .is_some_and(|target| target.contains("Service/"));
            assert!(
                run || (info == "console" && page.ends_with("README.md")),
                "{place}: nobody runs a block of {info:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_flags_are_those_of_the_program() {
    let output = Command::new(binary()).arg("--help").output().await.unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let mut rows: Vec<[String; 3]> = Vec::new();
    for line in help
        .split_once("Options:")
        .unwrap()
        .1
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        let line = line
            .strip_prefix("-h, ")
            .or_else(|| line.strip_prefix("-V, "))
            .unwrap_or(line);
        if line.starts_with("--") {
            rows.push([line.replace(['<', '>'], ""), String::new(), String::new()]);
            continue;
        }
        let row = rows.last_mut().unwrap();
        let (meaning, default) = line.split_once("[default: ").unwrap_or((line, ""));
        row[2].push_str(meaning.trim());
        row[1].push_str(default.trim_end_matches(']'));
    }
    rows.retain(|[flag, ..]| flag != "--help" && flag != "--version");
    assert!(rows.len() > 10, "{help}");
    let code = |text: &str| {
        if text.is_empty() {
            String::new()
        } else {
            format!("`{text}`")
        }
    };
    let expected: Vec<String> = rows
        .iter()
        .map(|[flag, default, meaning]| format!("| {} | {} | {meaning}. |", code(flag), code(default)))
        .collect();
    assert_eq!(
        table("flags").join("\n"),
        expected.join("\n"),
        "the table should be\n{}",
        expected.join("\n")
    );
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
    let on_page: Vec<String> = table("capabilities")
        .iter()
        .map(|row| row.split('`').nth(1).unwrap().to_owned())
        .collect();
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
            let target = page.parent().unwrap().join(file);
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

#[test]
fn three_dots_stand_for_anything() {
    assert!(is_like("{ \"a\": 1,\n \"b\": 2 }", "{\"a\": …, \"b\": 2}") && is_like("x", "…") && is_like("", ""));
    assert!(
        !is_like("{\"a\": 1}", "{\"a\": 2}") && !is_like("ab", "a") && !is_like("ba", "…b") && !is_like("ab", "b…")
    );
    assert!(is_like("aXbXb", "a…b"));
}

fn root() -> PathBuf {
    // Cargo runs tests in their package. The directory of the build may be another clone's that is gone.
    PathBuf::from("..")
}

/// All that users read.
fn pages() -> Vec<PathBuf> {
    let named = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "bench/README.md",
        "clients/README.md",
        "deploy/README.md",
    ];
    let docs = fs::read_dir(root().join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = named.iter().map(|name| root().join(name)).chain(docs).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open.as_mut()) {
            (Some(info), None) => {
                let place = format!("{}:{}", page.file_name().unwrap().display(), number + 1);
                open = Some(Block {
                    place,
                    info: info.to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block has no end", page.display());
    blocks
}

/// The requests on a page to that service: place, method, JSON.
fn requests(page: &Path, service: &str) -> Vec<(String, String, String)> {
    let prefix = format!("json {service}/");
    let request = |block: Block| Some((block.place, block.info.strip_prefix(&prefix)?.to_owned(), block.text));
    blocks(page).into_iter().filter_map(request).collect()
}

/// Commands of a session, each with what it prints.
fn steps(session: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    for line in session.lines() {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push((command.to_owned(), String::new())),
            None => {
                let (_, shown) = steps.last_mut().expect("a session begins with a command");
                shown.push_str(line);
                shown.push('\n');
            }
        }
    }
    steps
}

/// White space does not count: `buf` indents as it likes.
fn is_like(answer: &str, shown: &str) -> bool {
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    let (answer, shown) = (dense(answer), dense(shown));
    let pieces: Vec<&str> = shown.split(ANYTHING).collect();
    let [first, middle @ .., last] = &pieces[..] else {
        return answer == shown;
    };
    let Some(mut rest) = answer.strip_prefix(first) else {
        return false;
    };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

/// The rows of the table in docs/runtime.md that a comment of that name announces.
fn table(name: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("docs/runtime.md")).unwrap();
    let (_, rest) = text.split_once(&format!("<!-- {name}:")).unwrap();
    let lines = rest
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    lines.skip(2).map(str::to_owned).collect()
}

fn anchors(page: &Path) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -".contains(*c))
            .collect::<String>()
            .replace(' ', "-")
    };
    text.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// Sends a request with buf, as the docs tell people to.
async fn curl(args: &[&str], json: &str) -> Output {
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
    .args(args);
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
