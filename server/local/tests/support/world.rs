//! A provider with the real monitor and runtime, in a directory of its own.
#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "tests, which share it"
)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sandgate_errors::Refusal;
use sandgate_local::{IsolationLevel, Limits, Local, Network, Resources, Settings, Template, TemplateRoot, UidRanges};
use sandgate_proto::{
    runtime::v1::{Argv, ExecSpec, RunRequest, exec_exit::Status, exec_spec},
    v1::{ConnectionMode, Sandbox, SandboxState},
};
use sandgate_provider::{
    End, Name, NewSandbox, Provider as _,
    limits::{DefaultSpans, Spans},
};
use tokio::time::timeout;

pub const LONG: Duration = Duration::from_secs(60);

fn binaries() -> (PathBuf, PathBuf) {
    let runtime = env::var_os("SANDGATE_RUNTIME_BIN").expect("SANDGATE_RUNTIME_BIN names the runtime: run `make test`");
    let runtime = PathBuf::from(runtime);
    let monitor = env::var_os("SANDGATE_MONITOR_BIN").map(PathBuf::from);
    let monitor = monitor.unwrap_or_else(|| runtime.with_file_name("sandgate-monitor"));
    (runtime, monitor)
}

pub fn settings(state: &Path) -> Settings {
    let (runtime_bin, monitor_bin) = binaries();
    let template = Template {
        root: TemplateRoot::Host { paths: Vec::new() },
        env: vec![("FROM".into(), "template".into()), ("LANG".into(), "C.UTF-8".into())],
        workdir: "/workspace".into(),
        user: "sandbox".into(),
        network: Network::None,
        resources: Resources {
            memory: Some(512 << 20),
            pids: Some(256),
            ..Resources::default()
        },
        spans: DefaultSpans {
            ttl: Some(Duration::from_secs(600)),
            idle: None,
        },
        require: Vec::new(),
        isolation: IsolationLevel::Full,
    };
    let plain = Template {
        isolation: IsolationLevel::None,
        ..template.clone()
    };
    let impossible = Template {
        require: vec!["disk.size".into()],
        ..template.clone()
    };
    Settings {
        state_dir: state.to_owned(),
        runtime_bin,
        monitor_bin,
        templates: BTreeMap::from([
            ("default".to_owned(), template),
            ("plain".to_owned(), plain),
            ("impossible".to_owned(), impossible),
        ]),
        default_template: "default".to_owned(),
        limits: Limits {
            sandboxes: 4,
            execs_per_sandbox: 64,
            spans: Spans {
                max_ttl: Some(Duration::from_secs(3600)),
                max_idle: None,
            },
        },
        // Tests of other programs may be in the one below ours.
        cgroup_parent: Some(format!("/sandgate-local-{}", std::process::id()).into()),
        uids: UidRanges::default(),
    }
}

/// A provider with a directory of its own.
pub struct World {
    dir: tempfile::TempDir,
    pub local: Arc<Local>,
}

impl World {
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let local = Local::open(settings(&dir.path().join("state"))).await.unwrap();
        Self { dir, local }
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// As after a restart of the server.
    pub async fn reopen(&mut self) {
        self.local.close().await;
        self.local = Local::open(settings(&self.state())).await.unwrap();
    }

    pub async fn create(&self, name: &str) -> Result<Arc<Sandbox>, Refusal> {
        self.create_as(wanted(name)).await
    }

    pub async fn create_as(&self, wanted: NewSandbox) -> Result<Arc<Sandbox>, Refusal> {
        let name = wanted.name.clone();
        let begun = self.local.create(wanted).await?;
        timeout(LONG, self.local.ready(&name, &begun.sandbox.uid))
            .await
            .unwrap()
    }

    pub async fn resume(&self, name: &str) -> Result<Arc<Sandbox>, Refusal> {
        let begun = self.local.resume(&parse(name)).await?;
        timeout(LONG, self.local.ready(&parse(name), &begun.sandbox.uid))
            .await
            .unwrap()
    }

    pub fn state_of(&self, name: &str) -> Option<SandboxState> {
        Some(self.local.table().get(name)?.state())
    }

    pub async fn until(&self, name: &str, state: Option<SandboxState>) {
        let reached = self
            .local
            .table()
            .wait(LONG, |now| now.get(name).map(|now| now.state()) == state);
        assert!(reached.await, "{name} is {:?}", self.local.table().get(name));
    }

    pub async fn run(&self, name: &str, id: &str, script: &str) -> String {
        let (_, link) = self.local.link(&parse(name)).unwrap();
        let argv = Argv {
            args: ["sh", "-c", script].map(str::to_owned).to_vec(),
            ..Argv::default()
        };
        let request = RunRequest {
            exec_id: id.to_owned(),
            spec: Some(ExecSpec {
                command: Some(exec_spec::Command::Argv(argv)),
                ..ExecSpec::default()
            }),
            ..RunRequest::default()
        };
        let ran = link.client().run(request).await.unwrap().into_inner();
        let output = ran.stdout.unwrap_or_default();
        let exec = ran.exec.unwrap();
        assert!(
            exec.exit.is_some_and(|exit| exit.status == Some(Status::Code(0))),
            "{exec:?} {:?}",
            ran.stderr
        );
        String::from_utf8(output.head.to_vec()).unwrap()
    }

    /// Nothing may be left of the sandboxes that are gone.
    pub async fn assert_empty(&self) {
        for part in ["sandboxes", "new", "trash", "damaged"] {
            let dir = self.state().join(part);
            for _ in 0..200 {
                if fs::read_dir(&dir).unwrap().next().is_none() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
    }
}

pub fn parse(name: &str) -> Name {
    Name::parse("name", name).unwrap()
}

pub fn wanted(name: &str) -> NewSandbox {
    NewSandbox {
        name: parse(name),
        unnamed: false,
        template: String::new(),
        labels: BTreeMap::from([("team".to_owned(), "red".to_owned())]),
        env: Vec::new(),
        end: End::Default,
        idle_limit: None,
        warm_pool: String::new(),
        connection_mode: ConnectionMode::Unspecified,
        volumes: Vec::new(),
    }
}
