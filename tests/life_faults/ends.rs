//! Every sandbox has its end, also while there is no server.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandgate::{
    Sandbox,
    v1::{self, ErrorReason, SandboxState},
};
use sandgate_tests::{new_id, procs, server::Server};

use super::{delete_all, endless, in_time, sh};

const SOON: Duration = Duration::from_secs(2);

async fn create(server: &Server, name: &str) -> Sandbox {
    let created = server.client().await.create().name(name).send().await.unwrap();
    sh(&created.sandbox, "echo kept > /workspace/file").await;
    created.sandbox
}

async fn idle_after(sandbox: &Sandbox, limit: Duration) {
    let settings = v1::SandboxSettings {
        idle_limit: Some(limit.try_into().unwrap()),
        ..Default::default()
    };
    sandbox.update(settings, &["idle_limit"], "").await.unwrap();
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadlines_and_idle_limits_are_kept_without_a_server() {
    in_time(async {
        let mut server = Server::start().await;
        let mark = new_id("ends");
        let (running, busy) = (create(&server, "running").await, create(&server, "busy").await);
        let (suspended, idle) = (create(&server, "suspended").await, create(&server, "idle").await);
        let kept = create(&server, "kept").await;
        running.start(endless(&format!("{mark}-running"))).await.unwrap();
        // Nobody follows it, and still the sandbox is not idle.
        busy.start(endless(&format!("{mark}-busy"))).await.unwrap();
        suspended.suspend(Some(Duration::ZERO)).await.unwrap();
        let stuck = create(&server, "stuck").await;
        for sandbox in [&running, &suspended, &stuck] {
            sandbox.extend(SOON).await.unwrap();
        }
        for sandbox in [&busy, &idle] {
            idle_after(sandbox, SOON).await;
        }
        let busy_pid = server.sandbox_pid("busy");
        // Its runtime can't keep the deadline, so its monitor has to.
        signal(server.sandbox_pid("stuck"), Signal::STOP);
        let kept_uid = kept.get().await.unwrap().uid;
        server.kill();

        for name in ["running", "suspended", "idle", "stuck"] {
            procs::until(&format!("{name} outlives its end"), || {
                !server.sandbox_dir(name).exists()
            })
            .await;
        }
        procs::until("its process outlives it", || {
            procs::marked(&format!("{mark}-running")).is_empty()
        })
        .await;
        assert_eq!(server.sandbox_pid("busy"), busy_pid);
        let command = procs::marked(&format!("{mark}-busy"));
        assert_eq!(command.len(), 1, "a command keeps it from being idle");
        signal(command[0].pid, Signal::KILL);
        procs::until("busy outlives its end", || !server.sandbox_dir("busy").exists()).await;
        let of_kept = |left: &String| left.contains(&kept_uid) || left.contains("/sandboxes/kept");
        procs::until("something of the others is left", || server.left().iter().all(of_kept)).await;

        server.restart().await;
        let names: Vec<_> = server
            .client()
            .await
            .list("")
            .await
            .unwrap()
            .into_iter()
            .map(|s| s.name)
            .collect();
        assert_eq!(names, ["kept"]);
        assert_eq!(sh(&kept, "cat /workspace/file").await, "kept\n");
        delete_all(&server, &mark).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_that_nobody_could_keep_is_kept_by_the_next_server() {
    in_time(async {
        let mut server = Server::start().await;
        let mark = new_id("late");
        let (running, suspended) = (create(&server, "running").await, create(&server, "suspended").await);
        running.start(endless(&mark)).await.unwrap();
        suspended.suspend(Some(Duration::ZERO)).await.unwrap();
        for sandbox in [&running, &suspended] {
            sandbox.extend(SOON).await.unwrap();
        }
        server.kill();
        for name in ["running", "suspended"] {
            if let Some(monitor) = server.monitor_pid(&server.sandbox_dir(name)) {
                kill_process(monitor, Signal::KILL).unwrap();
            }
        }
        tokio::time::sleep(SOON).await;
        server.restart().await;
        for sandbox in [running, suspended] {
            while let Ok(now) = sandbox.get().await {
                assert!(now.state() != SandboxState::Failed, "{now:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert_eq!(
                sandbox.get().await.unwrap_err().reason(),
                Some(ErrorReason::SandboxNotFound)
            );
        }
        delete_all(&server, &mark).await;
    })
    .await;
}
