//! A sandbox with eight streams, about to come to an end.

use std::fs;

use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};
use rustix::process::Pid;
use sandgate::{
    Client, Command, Error, Sandbox,
    v1::{self, EndCause, ErrorReason, SandboxState, watch_response::Event},
};
use sandgate_kubernetes_tests::{Mode, Space, until};
use sandgate_tests::{
    conformance::{new_name, sh},
    new_id, seeded,
    server::Server,
};
use tonic::Streaming;

use super::streams::{Streams, assert_same_runs, runs};

/// A sandbox with eight streams.
pub(crate) struct Scene {
    pub(crate) space: Space,
    _server: Server,
    client: Client,
    sandbox: Sandbox,
    before: v1::Sandbox,
    template: String,
    streams: Streams,
    watch: Streaming<v1::WatchResponse>,
}

/// What is to become of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It runs again, with what is on its volumes.
    Again,
    /// It runs again, with new volumes.
    Anew,
    /// It is gone.
    Gone,
}

/// What became of the sandbox.
enum Fate {
    /// It runs again, as another incarnation.
    Replaced,
    /// It is gone.
    Gone(v1::SandboxDeleted),
}

// === impl Scene ===

impl Scene {
    /// In a namespace of its own, from a template of that.
    pub(crate) async fn new(space: Space, template: &str) -> Self {
        let server = space.server(Mode::InCluster).await;
        let client = server.client().await;
        let create = client.create().name(new_name()).template(template);
        let made = create.send().await.unwrap();
        let watch = client.raw().watch(v1::WatchRequest::default()).await.unwrap();
        let streams = Streams::begin(&made.sandbox, &mut seeded(), async || server.client().await).await;
        Self {
            space,
            _server: server,
            client,
            sandbox: made.sandbox,
            before: made.info,
            template: template.to_owned(),
            streams,
            watch: watch.into_inner(),
        }
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The only pod of the namespace.
    pub(crate) async fn pod(&self) -> Pod {
        let mut pods = self.space.pods().list(&ListParams::default()).await.unwrap().items;
        assert_eq!(pods.len(), 1);
        pods.remove(0)
    }

    /// The first process of its container, as this machine counts.
    pub(crate) async fn runtime(&self) -> Pid {
        let audience = format!("test/{}/{}", self.space.namespace, self.pod().await.name_any());
        let is_it = |pid: &i32| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let status = read("status");
            let inside = status.lines().find(|line| line.starts_with("NSpid:")).unwrap_or("");
            inside.ends_with("\t1") && read("cmdline").split('\0').any(|word| word == audience)
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let pid = pids.find(is_it).expect("the container runs on this machine");
        Pid::from_raw(pid).unwrap()
    }

    /// Sees to it that every stream ended with what happened, that the sandbox tells why, and that nothing runs again.
    /// Then nothing is left.
    pub(crate) async fn ended_by(mut self, cause: EndCause, after: After) {
        let fate = self.fate().await;
        let ids = self.streams.ids();
        for followed in self.streams.ended().await {
            followed.check_beginning();
            match &followed.error {
                None => println!("  {}: ended by a signal", followed.id),
                Some(Error::Restarted(refused)) => {
                    println!("  {}: {}", followed.id, refused.message);
                    assert_eq!(refused.metadata["incarnation"], self.before.incarnation);
                }
                // A pod that has ended takes its claim with it, or is replaced: at first nobody knows.
                Some(error) => {
                    println!("  {}: {error}", followed.id);
                    assert_eq!(error.reason(), Some(ErrorReason::SandboxNotFound), "{error:?}");
                }
            }
        }
        let old = self.sandbox.clone().expecting(&self.before.incarnation);
        match fate {
            Fate::Replaced => {
                let now = self.sandbox.get().await.unwrap();
                let end = now.last_end.clone().unwrap();
                println!("replaced: {:?}: {}", end.cause(), end.message);
                assert_ne!(after, After::Gone);
                assert_eq!((end.cause(), &end.incarnation), (cause, &self.before.incarnation));
                assert_eq!(now.uid, self.before.uid);
                refuses(&old, &self.before.incarnation, &ids[0], ErrorReason::SandboxRestarted).await;
                // Whatever ran again would be on the list a second time, or on a new one.
                let ran = match after {
                    After::Again => &ids[..],
                    After::Anew | After::Gone => &[],
                };
                assert_same_runs(&runs(&self.sandbox).await, ran);
                let alive = self.sandbox.execs(true).await.unwrap();
                assert!(alive.is_empty(), "{alive:?}");
            }
            Fate::Gone(told) => {
                println!("gone: {:?}: {}", told.cause(), told.message);
                assert_eq!(after, After::Gone);
                assert_eq!((told.cause(), &told.uid), (cause, &self.before.uid));
                refuses(&old, &self.before.incarnation, &ids[0], ErrorReason::SandboxNotFound).await;
                // A scheduler that saw the volume of a pod replaced by another one of its name has forgotten that pod for
                // minutes, until something else happened.
                let volumes = self.space.volume_claims();
                until(async || volumes.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
                let create = self.client.create().name(self.sandbox.name()).template(&self.template);
                let made = create.send().await.unwrap();
                assert!(made.created);
                assert_eq!(made.info.state(), SandboxState::Ready, "{}", made.info.state_message);
                refuses(&old, &self.before.incarnation, &ids[0], ErrorReason::SandboxRestarted).await;
                sh(&made.sandbox, "test ! -e /workspace/runs").await;
                assert_eq!(made.sandbox.execs(false).await.unwrap().len(), 1, "only that one ran");
            }
        }
        self.sandbox.delete().await.unwrap();
        self.space.close().await;
    }

    /// Waits until the sandbox runs again or is gone.
    async fn fate(&mut self) -> Fate {
        while let Some(message) = self.watch.message().await.unwrap() {
            match message.event {
                Some(Event::Sandbox(now)) if now.name == self.before.name => {
                    println!("now {:?} {:?} {}", now.state(), now.incarnation, now.state_message);
                    if now.state() == SandboxState::Ready && now.incarnation != self.before.incarnation {
                        return Fate::Replaced;
                    }
                }
                Some(Event::Deleted(told)) if told.name == self.before.name => return Fate::Gone(told),
                _ => {}
            }
        }
        panic!("the watch ended");
    }
}

/// Whatever would start or change something in an incarnation that has ended is refused.
async fn refuses(old: &Sandbox, incarnation: &str, id: &str, reason: ErrorReason) {
    let started = old.start(Command::shell("echo again >> /workspace/runs")).await;
    assert_eq!(started.unwrap_err().reason(), Some(reason));
    let ran = old.run(Command::shell("echo again >> /workspace/runs")).send().await;
    assert_eq!(ran.unwrap_err().reason(), Some(reason));
    let followed = old.attach_exec(id).follow().wait().await;
    assert_eq!(followed.unwrap_err().reason(), Some(reason));
    let remove = v1::file_op::Op::Remove(v1::RemoveOp {
        path: "/workspace/runs".to_owned(),
        ..Default::default()
    });
    let changed = old.file_ops(vec![v1::FileOp { op: Some(remove) }]).await;
    assert_eq!(changed.unwrap_err().reason(), Some(reason));
    let write = v1::WriteExecRequest {
        sandbox: old.name().to_owned(),
        exec_id: id.to_owned(),
        expected_incarnation: incarnation.to_owned(),
        writer: new_id("writer"),
        ..Default::default()
    };
    let written = old.client().raw().write_exec(write).await.map_err(Error::from);
    assert_eq!(written.unwrap_err().reason(), Some(reason));
}
