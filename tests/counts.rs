//! How many instructions the hot paths take, so that a change that makes them longer is seen on any machine.
//!
//! Times say little on a machine that others use; instructions under callgrind are nearly the same whatever else runs. On one
//! processor, that is, because a server takes as many threads as the machine lets it. Those that were counted last are in
//! `counts.json`. A tenth more fails; whoever has a reason for it writes the file anew with
//! `make counts`, and the change shows it. What they are counted of must be a release build, which `SANDGATE_TEST_SERVER_BIN` names.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, ffi::OsString, fs, path::Path, process::Command};

use sandgate::{Event, v1};
use sandgate_proto::runtime::v1 as runtime;
use sandgate_tests::{
    Runtime, RuntimeOptions, argv, link_to, new_id, run_request,
    server::{Server, ServerOptions, server_binary},
    shell,
};
use tempfile::TempDir;

type Counts = BTreeMap<String, u64>;

/// Beyond that it has grown.
const TOLERANCE: f64 = 1.1;
const KNOWN: &str = "../bench/counts.json";
/// Set, the file is written and nothing is compared.
const WRITE: &str = "SANDGATE_WRITE_COUNTS";

const RUNS: u64 = 200;
const STREAMED: usize = 64 << 20;
const ZEROS: &str = "exec dd if=/dev/zero bs=64k count=1024 status=none";
/// Writers are held back, so nothing is dropped.
const RETAINED: u64 = 4 << 20;
const NOTHING: [&str; 3] = ["/bin/sh", "-c", "true"];

/// A program under callgrind.
struct Counted {
    dir: TempDir,
}

#[tokio::test]
async fn the_hot_paths_are_no_longer_than_they_were() {
    assert!(
        server_binary().parent().is_some_and(|dir| dir.ends_with("release")),
        "counts are those of a release build: run `make counts`"
    );
    let mut counts = of_the_runtime().await;
    counts.append(&mut of_the_server().await);
    if std::env::var_os(WRITE).is_some() {
        let text = serde_json::to_string_pretty(&counts).unwrap();
        return fs::write(KNOWN, text + "\n").unwrap();
    }
    let known: Counts = serde_json::from_slice(&fs::read(KNOWN).unwrap()).unwrap();
    assert_eq!(known.keys().collect::<Vec<_>>(), counts.keys().collect::<Vec<_>>());
    let mut grown = Vec::new();
    for (what, now) in &counts {
        let ratio = *now as f64 / known[what] as f64;
        let line = format!("{what}: {now} instructions, {ratio:.3} of the {} known", known[what]);
        eprintln!("{line}");
        if ratio > TOLERANCE {
            grown.push(line);
        }
    }
    assert!(
        grown.is_empty(),
        "longer than before; mend that, or have `make counts` write bench/counts.json anew: {grown:#?}"
    );
}

/// The runtime alone, whose one thread does all but starting programs and writing files.
async fn of_the_runtime() -> Counts {
    let counted = Counted::new();
    let runtime = Runtime::start_with(RuntimeOptions {
        // Its other way of holding process trees is a kind of clone that valgrind does not know.
        cgroups: true,
        wrapper: counted.wrapper(),
        ..Default::default()
    })
    .await;
    let link = &link_to(runtime.socket());
    let client = &runtime.connect().await;
    let run = || async {
        let request = run_request(&new_id("run"), argv(&NOTHING));
        link.client().run(request).await.unwrap();
    };
    let stdout = || async {
        let spec = runtime::ExecSpec {
            on_full: runtime::OnFull::Hold.into(),
            retain_bytes: RETAINED,
            ..shell(ZEROS)
        };
        let start = runtime::exec_request::Request::Start(runtime::ExecStart {
            exec_id: new_id("zeros"),
            spec: Some(spec),
            ..Default::default()
        });
        let requests = tokio_stream::iter([runtime::ExecRequest { request: Some(start) }]);
        let mut answers = client.clone().exec(requests).await.unwrap().into_inner();
        let mut seen = 0;
        while let Some(answer) = answers.message().await.unwrap() {
            if let Some(runtime::exec_response::Response::Event(event)) = answer.response
                && let Some(runtime::exec_event::Event::Output(output)) = event.event
            {
                seen += output.data.len();
            }
        }
        assert_eq!(seen, STREAMED);
    };
    counted.both("runtime", runtime.pid(), run, stdout).await
}

/// The server in front of a sandbox of its own, whose runtime is not counted.
async fn of_the_server() -> Counts {
    let counted = Counted::new();
    let server = Server::start_with(ServerOptions {
        wrapper: counted.wrapper(),
        ..ServerOptions::default()
    })
    .await;
    let sandbox = server
        .client()
        .await
        .create()
        .name("counted")
        .send()
        .await
        .unwrap()
        .sandbox;
    let sandbox = &sandbox;
    let run = || async {
        let answer = sandbox.run(sandgate::Command::new(NOTHING)).send().await.unwrap();
        assert!(answer.exec.is_some_and(|exec| exec.exit.is_some()));
    };
    let stdout = || async {
        let spec = v1::ExecSpec {
            command: Some(v1::exec_spec::Command::Shell(ZEROS.into())),
            on_full: v1::OnFull::Hold.into(),
            retain_bytes: RETAINED,
            ..Default::default()
        };
        let mut exec = sandbox.exec(sandgate::Command::from_spec(spec));
        let mut seen = 0;
        while let Some(event) = exec.next().await {
            if let Event::Output { data, .. } = event.unwrap() {
                seen += data.len();
            }
        }
        assert_eq!(seen, STREAMED);
    };
    counted.both("server", server.pid(), run, stdout).await
}

async fn repeat<F: Future<Output = ()>>(times: u64, work: impl Fn() -> F) {
    for _ in 0..times {
        work().await;
    }
}

// === impl Counted ===

impl Counted {
    fn new() -> Self {
        Self {
            dir: TempDir::new().unwrap(),
        }
    }

    fn wrapper(&self) -> Vec<OsString> {
        let out = self.dir.path().join("counts");
        let mut file = OsString::from("--callgrind-out-file=");
        file.push(out);
        let words = [
            "taskset",
            "--cpu-list",
            &first_processor(),
            "valgrind",
            "--quiet",
            "--tool=callgrind",
        ];
        words.map(OsString::from).into_iter().chain([file]).collect()
    }

    /// The two hot paths of a process, each once for nothing before it is counted.
    async fn both<R, S>(&self, name: &str, pid: u32, run: impl Fn() -> R, stdout: impl Fn() -> S) -> Counts
    where
        R: Future<Output = ()>,
        S: Future<Output = ()>,
    {
        repeat(RUNS / 4, &run).await;
        let runs = self.during(pid, repeat(RUNS, &run)).await;
        repeat(1, &stdout).await;
        let streamed = self.during(pid, stdout()).await;
        [
            (format!("{name}, 1,000 Run"), runs * 1_000 / RUNS),
            (format!("{name}, 64 MiB of stdout"), streamed),
        ]
        .into()
    }

    /// Instructions of all threads of that process while the work is done.
    async fn during(&self, pid: u32, work: impl Future<Output = ()>) -> u64 {
        control("--zero", pid);
        work.await;
        control("--dump", pid);
        totals(self.dir.path())
    }
}

/// The first that we may use.
fn first_processor() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first = list.and_then(|list| list.trim().split(['-', ',']).next());
    first.expect("there is one").to_owned()
}

fn control(verb: &str, pid: u32) {
    let done = Command::new("callgrind_control")
        .arg(verb)
        .arg(pid.to_string())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// Of the newest dump; each one is taken away.
fn totals(dir: &Path) -> u64 {
    let dumps: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    let text = |path: &std::path::PathBuf| fs::read_to_string(path).unwrap();
    let total = dumps.iter().map(text).find_map(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("totals: "))?;
        line.trim().parse().ok()
    });
    dumps.iter().for_each(|dump| fs::remove_file(dump).unwrap());
    total.expect("callgrind wrote what it counted")
}
