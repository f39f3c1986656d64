//! Every sandbox has its end, also while there is no server.

use std::time::Duration;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};
use sandgate::{
    Sandbox,
    v1::{self, ErrorReason, SandboxState},
};
use sandgate_tests::{new_id, procs, server::Server};

use super::{delete_all, endless, in_time, sh};

const SOON: Duration = Duration::from_secs(2);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

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

/// What ran when the last server was there need not run any more, and only the monitor knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_resumes_a_found_sandbox_hears_from_its_monitor() {
    in_time(async {
        let mut server = Server::start().await;
        let sandbox = create(&server, "found").await;
        let monitor = server.monitor_pid(&server.sandbox_dir("found")).unwrap();
        let runtime = server.sandbox_pid("found");
        server.kill();
        kill_process(monitor, Signal::STOP).unwrap();
        server.restart().await;
        let resumed = tokio::spawn({
            let sandbox = sandbox.clone();
            async move { sandbox.resume().await.unwrap() }
        });
        // Long enough for an answer from what the disk says.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!resumed.is_finished(), "its monitor has not said a word");
        let pidfd = pidfd_open(Pid::from_raw(runtime).unwrap(), PidfdFlags::empty()).unwrap();
        signal(runtime, Signal::KILL);
        let ended = || poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&NOW)).unwrap() == 1;
        procs::until("a killed runtime lives on", ended).await;
        kill_process(monitor, Signal::CONT).unwrap();
        let ready = resumed.await.unwrap();
        assert_eq!(ready.state(), SandboxState::Ready);
        assert_ne!(server.sandbox_pid("found"), runtime);
        assert_eq!(sh(&sandbox, "cat /workspace/file").await, "kept\n");

        // A server that stops does not wait for it.
        server.kill();
        let monitor = server.monitor_pid(&server.sandbox_dir("found")).unwrap();
        kill_process(monitor, Signal::STOP).unwrap();
        server.restart().await;
        let mut raw = sandbox.client().raw();
        let request = v1::ResumeRequest {
            sandbox: "found".into(),
            ..Default::default()
        };
        let waiting = tokio::spawn(async move { raw.resume(request).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "its monitor has not said a word");
        assert!(server.stop().success());
        let refused = waiting.await.unwrap().unwrap_err();
        assert_eq!(sandgate_tests::reason(&refused), ErrorReason::Stopping);
        kill_process(monitor, Signal::CONT).unwrap();
        server.restart().await;
        delete_all(&server, "found").await;
    })
    .await;
}
