//! What Sandgate costs on a cluster, against what users have there without it.
//!
//! `make bench-cluster` runs it in the network of a test cluster. All take turns at the same node, and those that need
//! the same thing, such as a warm pool, at the same one. The connection to what runs inside is part of Create; how long it
//! took is in the answer, so the figure without it is there too.
#![forbid(unsafe_code)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that can't go on ends"
)]

use std::{
    cell::Cell,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Parser;
use futures_util::StreamExt as _;
use kube::{
    api::{DeleteParams, DynamicObject, PostParams, WatchEvent, WatchParams},
    core::DynamicObject as Object,
};
use sandgate::{Client, Command, Sandbox, v1::StartKind};
use sandgate_bench::{
    measure::{Entrant, Estimate, take_turns},
    report::{Figure, Goal, Report, Unit},
    worker::{Worker, tool},
};
use sandgate_kubernetes_tests::{Mode, Space, plain_template};
use sandgate_tests::{conformance::new_name, server::Server};
use serde_json::{Value, json};

/// Measures Sandgate on a cluster. `scripts/cluster with` gives it one.
#[derive(Debug, Parser)]
struct Args {
    /// Write the page, its charts and the figures there.
    #[arg(long)]
    out: Option<PathBuf>,
    /// How often each takes its turn.
    #[arg(long, default_value_t = 40)]
    rounds: usize,
}

const PREFACE: &str = include_str!("../preface-cluster.md");
const WARM: &str = "A warm sandbox";
const COMMAND: &str = "One command (`sh -c true`) in a pod";
const FILES: &str = "File tools of a deep agent, through the router";
/// The pool of pods with our runtime, and that of pods with agent-sandbox's python-runtime.
const OURS: &str = "pool";
const THEIRS: &str = "theirs";
const POOL: u32 = 6;
const NOTHING: [&str; 3] = ["/bin/sh", "-c", "true"];

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let space = Space::new().await;
    space.create_template(python_template()).await;
    space.create_pool(OURS, "plain", POOL).await;
    space.create_pool(THEIRS, THEIRS, POOL).await;
    let server = space.server(Mode::InCluster).await;
    let client = server.client().await;
    let kept = client
        .create()
        .name(new_name())
        .warm_pool(OURS)
        .send()
        .await
        .unwrap()
        .sandbox;
    let mut report = Report::default();
    let python = python_client(&server, &kept).await;
    let sdk = Worker::python("agent-sandbox-sdk", "sdk.py", &[&space.namespace, THEIRS]).await;
    warm(&space, &client, (&python, &sdk), args.rounds, &mut report).await;
    commands(&space, &kept, (&python, &sdk), args.rounds, &mut report).await;
    python.end().await;
    sdk.end().await;
    files(&space, &kept, args.rounds, &mut report).await;
    kept.delete().await.unwrap();
    space.close().await;
    if let Some(out) = args.out {
        report.write(&out, "benchmarks-cluster", PREFACE).unwrap();
    }
    let missed = report.missed();
    if !missed.is_empty() {
        println!("\nmissed:");
        missed.iter().for_each(|line| println!("  {line}"));
    }
}

/// A template of pods with agent-sandbox's python-runtime.
fn python_template() -> Value {
    let mut template = plain_template(THEIRS);
    let pod = &mut template["spec"]["podTemplate"]["spec"];
    pod["volumes"] = json!([]);
    // It does not end when it is told to.
    pod["terminationGracePeriodSeconds"] = 1.into();
    let container = pod["containers"][0].as_object_mut().unwrap();
    for ours in ["command", "volumeMounts", "env"] {
        container.remove(ours);
    }
    container.insert("image".into(), "sandgate/python-runtime:test".into());
    container["readinessProbe"]["httpGet"]["path"] = "/".into();
    template
}

async fn python_client(server: &Server, kept: &Sandbox) -> Worker {
    let address = format!("unix://{}", server.socket().display());
    Worker::python("pytest", "client.py", &[&address, "", kept.name(), OURS]).await
}

async fn warm(space: &Space, client: &Client, (python, sdk): (&Worker, &Worker), rounds: usize, report: &mut Report) {
    let without_connect = &Cell::new(0.0);
    // A pool that is being filled takes the machine from whoever comes next, which is always the same one.
    let rested = || async {
        for pool in [OURS, THEIRS] {
            space.until_full(pool, POOL).await;
        }
    };
    let create = || async {
        rested().await;
        let took = create(client).await;
        without_connect.set((took.all - took.connect).as_secs_f64());
        took.all.as_secs_f64()
    };
    let claim = || async {
        rested().await;
        claim(space).await.as_secs_f64()
    };
    let first = |worker: &'static str| {
        move || async move {
            rested().await;
            let worker = if worker == "sdk" { sdk } else { python };
            worker.work("first").await
        }
    };
    let entrants = [
        Entrant::telling("create", create),
        // Another figure of the one before it.
        Entrant::telling("without", || async { without_connect.get() }),
        Entrant::telling("claim", claim),
        Entrant::telling("python", first("python")),
        Entrant::telling("sdk", first("sdk")),
    ];
    let costs = take_turns(rounds, &entrants).await;
    let bare = "a bare claim that is watched";
    let mut cost = |name, against, goal, estimate| report.add(cost(WARM, name, against, goal, estimate));
    cost("Create", bare, None, costs.ratio("create", "claim"));
    cost(
        "Create without the first connection to the runtime",
        bare,
        Some(Goal::AtMost(1.3)),
        costs.ratio("without", "claim"),
    );
    cost(
        "Create and a first command, from Python",
        "the same by k8s-agent-sandbox, at the pod's address",
        None,
        costs.ratio("python", "sdk"),
    );
}

/// What one Create took, and what of it was the first connection.
struct Took {
    all: Duration,
    connect: Duration,
}

async fn create(client: &Client) -> Took {
    let begun = Instant::now();
    let created = client.create().name(new_name()).warm_pool(OURS).send().await.unwrap();
    let all = begun.elapsed();
    let start = created.info.start.unwrap();
    assert_eq!(start.kind(), StartKind::Warm);
    let connect = start.steps.iter().find(|step| step.name == "connect").unwrap();
    let connect = connect.duration.unwrap().try_into().unwrap();
    created.sandbox.delete().await.unwrap();
    Took { all, connect }
}

/// What a user of the API would do by hand: make a claim, and watch it until it is ready.
async fn claim(space: &Space) -> Duration {
    let name = new_name();
    let claim: Object = serde_json::from_value(json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {"name": name},
        "spec": {"warmPoolRef": {"name": OURS}},
    }))
    .unwrap();
    let claims = space.claims();
    let begun = Instant::now();
    let made = claims.create(&PostParams::default(), &claim).await.unwrap();
    let version = made.metadata.resource_version.unwrap();
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = claims.watch(&only, &version).await.unwrap().boxed();
    while let Some(event) = events.next().await {
        if let WatchEvent::Modified(claim) = event.unwrap()
            && is_ready(&claim)
        {
            break;
        }
    }
    let took = begun.elapsed();
    claims.delete(&name, &DeleteParams::foreground()).await.unwrap();
    took
}

fn is_ready(claim: &DynamicObject) -> bool {
    let conditions = claim.data["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let ready = conditions
        .iter()
        .any(|each| each["type"] == "Ready" && each["status"] == "True");
    ready && claim.data["status"]["sandbox"]["name"].is_string()
}

async fn commands(
    space: &Space,
    kept: &Sandbox,
    (python, sdk): (&Worker, &Worker),
    rounds: usize,
    report: &mut Report,
) {
    // The way that kubectl takes, too: through the API server and the kubelet.
    let server = space.server(Mode::Tunnel).await;
    let tunnel = server.client().await.sandbox(kept.name());
    let claim = space.claims().get(kept.name()).await.unwrap();
    let pod = claim.data["status"]["sandbox"]["name"].as_str().unwrap();
    let entrants = [
        Entrant::new("in-cluster", || run(kept)),
        Entrant::new("tunnel", || run(&tunnel)),
        Entrant::new("kubectl", || kubectl_exec(space, pod)),
        Entrant::telling("python", || python.work("run")),
        Entrant::telling("sdk", || sdk.work("run")),
    ];
    let costs = take_turns(rounds, &entrants).await;
    let mut cost = |name, against, goal, estimate| report.add(cost(COMMAND, name, against, goal, estimate));
    let (goal, kubectl) = (Some(Goal::AtMost(0.25)), "`kubectl exec`");
    cost(
        "Run, at the pod's address",
        kubectl,
        goal,
        costs.ratio("in-cluster", "kubectl"),
    );
    cost(
        "Run, through the API server",
        kubectl,
        goal,
        costs.ratio("tunnel", "kubectl"),
    );
    cost(
        "`run` from Python, at the pod's address",
        "`commands.run` of k8s-agent-sandbox, the same way",
        None,
        costs.ratio("python", "sdk"),
    );
}

async fn run(sandbox: &Sandbox) {
    let answer = sandbox.run(Command::new(NOTHING)).send().await.unwrap();
    assert!(answer.exec.is_some_and(|exec| exec.exit.is_some()));
}

async fn kubectl_exec(space: &Space, pod: &str) {
    let status = tokio::process::Command::new(tool("kubectl", "kubectl"))
        .arg("--kubeconfig")
        .arg(&space.cluster.kubeconfig)
        .args([
            "--namespace",
            &space.namespace,
            "exec",
            pod,
            "--container",
            "sandbox",
            "--",
        ])
        .args(NOTHING)
        .status()
        .await
        .expect("`scripts/need kubectl` brings it");
    assert!(status.success());
}

async fn files(space: &Space, kept: &Sandbox, rounds: usize, report: &mut Report) {
    let server = space.server(Mode::Direct).await;
    let address = format!("unix://{}", server.socket().display());
    let ours = Worker::python("pytest", "backend.py", &["sandgate", &address, kept.name()]).await;
    let args = ["langchain-k8s", &space.namespace, THEIRS, &space.cluster.router];
    let theirs = Worker::python("langchain-k8s", "backend.py", &args).await;
    for (word, goal) in [
        ("read", Some(10.0)),
        ("write", Some(10.0)),
        ("edit", Some(10.0)),
        ("ls", Some(10.0)),
        ("glob", Some(10.0)),
        ("grep", Some(10.0)),
        ("execute", None),
    ] {
        let mut entrants = vec![
            Entrant::telling("sandgate", || ours.work(word)),
            Entrant::telling("langchain-k8s", || theirs.work(word)),
        ];
        if word == "grep" {
            entrants.push(Entrant::telling("read", || ours.work("read")));
        }
        let costs = take_turns(rounds, &entrants).await;
        let mut speed = |name, against: &str, goal: Option<f64>, estimate| {
            report.add(Figure {
                group: FILES,
                name,
                against: against.into(),
                unit: Unit::Speed,
                goal: goal.map(Goal::AtLeast),
                estimate,
            });
        };
        speed(
            format!("`{word}` of SandgateBackend"),
            "langchain-k8s's KubernetesSandbox",
            goal,
            costs.ratio("langchain-k8s", "sandgate"),
        );
        // Their grep is one command, where their other tools are several: it can't be beaten by more than our cheapest call.
        if word == "grep" {
            speed(
                "`read`, the least that a call takes".into(),
                "their `grep`",
                None,
                costs.ratio("langchain-k8s", "read"),
            );
        }
    }
    ours.end().await;
    theirs.end().await;
}

fn cost(group: &'static str, name: &str, against: &str, goal: Option<Goal>, estimate: Estimate) -> Figure {
    Figure {
        group,
        name: name.into(),
        against: against.into(),
        unit: Unit::Cost,
        goal,
        estimate,
    }
}
