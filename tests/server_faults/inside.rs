//! `kill -9` of what is below the server: a sandbox's runtime, and its monitor.

use rustix::process::{Pid, Signal, kill_process};
use sandgate::{
    Client, Command, Error, Sandbox,
    v1::{self, EndCause, ErrorReason, ExecState, SandboxState, exec_event::Event, exec_exit::Status},
};
use sandgate_tests::{new_id, procs, reason, server::Server};
use tokio::task::JoinHandle;

use super::{connect, delete_all, in_time, runs, told::Told, work::Count};

const FOLLOWERS: usize = 4;
/// More than an endless command prints while a test runs.
const ROUNDS: u32 = 3000;
/// More output than the runtime keeps in memory, so that some is on disk.
const MUCH: usize = 24 << 20;

type Follower = JoinHandle<(Told, Option<Error>)>;

/// A sandbox that is full of life.
struct Lively {
    sandbox: Sandbox,
    incarnation: String,
    mark: String,
    /// Ended before the fault.
    finished: String,
    /// Each with its follower.
    endless: Vec<(Count, Follower)>,
}

// === impl Lively ===

impl Lively {
    /// Makes a sandbox and lets clients follow commands in it. Each has printed something when this returns.
    async fn begin(server: &Server, name: &str) -> Self {
        let created = server.client().await.create().name(name).send().await.unwrap();
        let (sandbox, mark) = (created.sandbox, new_id("lively"));
        let finished = new_id("finished");
        let script = format!("echo {finished} >> /workspace/runs; yes 0123456789abcdef | head -c {MUCH}; exit 7");
        let (told, error) = Told::follow(&mut sandbox.exec(Command::shell(script).id(&finished))).await;
        assert!(error.is_none(), "{error:?}");
        told.check_whole(&much(), b"", 7);
        let mut endless = Vec::new();
        for _ in 0..FOLLOWERS {
            let (count, client) = (Count::endless(), connect(&server.socket()).await);
            let mut exec = client.sandbox(name).exec(count.command(&mark));
            endless.push((count, tokio::spawn(async move { Told::follow(&mut exec).await })));
        }
        for (count, _) in &endless {
            has_printed(&sandbox, &count.id).await;
        }
        Self {
            sandbox,
            incarnation: created.info.incarnation,
            mark,
            finished,
            endless,
        }
    }

    /// The incarnation has crashed, and everybody knows: the sandbox, the followers, the processes.
    async fn check_crashed(self) -> Crashed {
        let mut followed = Vec::new();
        for (count, follower) in self.endless {
            let (told, error) = follower.await.unwrap();
            let refused = match &error {
                Some(Error::Restarted(refused)) => refused,
                other => panic!("{other:?}"),
            };
            assert_eq!(
                refused.metadata.get("incarnation"),
                Some(&self.incarnation),
                "{refused:?}"
            );
            assert!(told.exit.is_none() && told.gaps.is_empty() && told.started == 1);
            followed.push((count, told));
        }
        let now = self.sandbox.get().await.unwrap();
        let end = now.last_end.clone().unwrap();
        assert_eq!(
            (now.state(), now.incarnation.as_str()),
            (SandboxState::Suspended, ""),
            "{now:?}"
        );
        assert_eq!(
            (end.cause(), &end.incarnation),
            (EndCause::Crashed, &self.incarnation),
            "{end:?}"
        );
        procs::until("processes outlive it", || procs::marked(&self.mark).is_empty()).await;
        let mut again = self.sandbox.exec(Command::shell("echo again >> /workspace/runs"));
        let (_, refused) = Told::follow(&mut again).await;
        assert_eq!(refused.unwrap().reason(), Some(ErrorReason::SandboxSuspended));
        let expecting = self.sandbox.clone().expecting(&self.incarnation).auto_resume(true);
        let refused = expecting.start(Command::shell("echo again >> /workspace/runs")).await;
        assert_eq!(refused.unwrap_err().reason(), Some(ErrorReason::SandboxRestarted));
        Crashed {
            sandbox: self.sandbox,
            incarnation: self.incarnation,
            mark: self.mark,
            finished: self.finished,
            followed,
        }
    }
}

/// A sandbox of which an incarnation has crashed.
struct Crashed {
    sandbox: Sandbox,
    incarnation: String,
    mark: String,
    finished: String,
    followed: Vec<(Count, Told)>,
}

// === impl Crashed ===

impl Crashed {
    /// It comes back, knows what was, and runs nothing again.
    async fn check_comes_back(&self) {
        let back = self.sandbox.resume().await.unwrap();
        assert_eq!(back.state(), SandboxState::Ready);
        assert!(!back.incarnation.is_empty() && back.incarnation != self.incarnation);
        self.check_finished().await;
        for (count, seen) in &self.followed {
            self.check_lost(count, seen).await;
        }
        let mut wanted = vec![self.finished.clone()];
        wanted.extend(self.followed.iter().map(|(count, _)| count.id.clone()));
        let mut listed = runs(&self.sandbox).await;
        wanted.sort();
        listed.sort();
        assert_eq!(listed, wanted, "nothing ran again");
        assert_eq!(procs::marked(&self.mark), []);
    }

    /// How a command ended is known for ever. Of its output there is what was on disk.
    async fn check_finished(&self) {
        let (told, error) = Told::follow(&mut self.sandbox.attach_exec(&self.finished).follow()).await;
        assert!(error.is_none(), "{error:?}");
        let printed = much();
        told.check_beginning(&printed, b"");
        assert!(!told.stdout.is_empty(), "some of it was on disk");
        assert_eq!(told.total.unwrap().stdout, printed.len() as u64);
        assert_eq!(told.exit.unwrap().status, Some(Status::Code(7)));
    }

    /// What was kept of a command that was lost is what it wrote; the rest is said to be gone, and its id is taken.
    async fn check_lost(&self, count: &Count, seen: &Told) {
        let info = self.sandbox.exec_info(&count.id).await.unwrap();
        assert_eq!(
            (info.state(), &info.incarnation),
            (ExecState::Exited, &self.incarnation)
        );
        assert!(
            info.output_ended && !info.processes_alive && !info.stdin_open,
            "{info:?}"
        );
        let (stdout, stderr) = count.output(ROUNDS);
        seen.check_beginning(&stdout, &stderr);
        let (told, error) = Told::follow(&mut self.sandbox.attach_exec(&count.id).follow()).await;
        assert!(error.is_none(), "{error:?}");
        told.check_beginning(&stdout, &stderr);
        for exit in [info.exit.unwrap(), told.exit.unwrap()] {
            assert!(matches!(exit.status, Some(Status::Lost(_))), "{exit:?}");
        }
        let (total, before) = (told.total.unwrap(), seen.offsets());
        assert_eq!((told.offsets(), info.written), (total, Some(total)));
        assert!(
            total.stdout >= before.stdout && total.stderr >= before.stderr,
            "{total:?} {before:?}"
        );
        let request = |command: &str| v1::StartExecRequest {
            sandbox: self.sandbox.name().to_owned(),
            exec_id: count.id.clone(),
            spec: Some(v1::ExecSpec {
                command: Some(v1::exec_spec::Command::Shell(command.to_owned())),
                ..Default::default()
            }),
            ..Default::default()
        };
        let other = self
            .sandbox
            .client()
            .raw()
            .start_exec(request("echo other >> /workspace/runs"))
            .await;
        assert_eq!(reason(&other.unwrap_err()), ErrorReason::ExecAlreadyExists);
        let same = self.sandbox.start(count.command(&self.mark)).await.unwrap();
        assert_eq!(
            (same.state(), &same.incarnation),
            (ExecState::Exited, &self.incarnation)
        );
    }
}

/// What `yes` prints.
fn much() -> Vec<u8> {
    b"0123456789abcdef\n".iter().copied().cycle().take(MUCH).collect()
}

async fn has_printed(sandbox: &Sandbox, id: &str) {
    loop {
        match sandbox.exec_info(id).await {
            Ok(info) if info.written.unwrap().stderr > 0 => return,
            Ok(_) => {}
            Err(error) if error.reason() == Some(ErrorReason::ExecNotFound) => {}
            Err(error) => panic!("{error:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Follows by the generated client, which resumes nothing, and gives the refusal that ended it.
fn follow_raw(client: &Client, sandbox: &str, id: &str) -> JoinHandle<tonic::Status> {
    let mut raw = client.raw();
    let target = v1::FollowTarget {
        exec_id: id.to_owned(),
        from: None,
    };
    let request = v1::FollowExecRequest {
        sandbox: sandbox.to_owned(),
        targets: vec![target],
        ..Default::default()
    };
    tokio::spawn(async move {
        let mut events = raw.follow_exec(request).await.unwrap().into_inner();
        loop {
            match events.message().await {
                Ok(Some(message)) => {
                    let event = message.event.unwrap().event.unwrap();
                    assert!(!matches!(event, Event::Exited(_) | Event::Ended(_)), "{event:?}");
                }
                Ok(None) => panic!("it ended without a word"),
                Err(status) => return status,
            }
        }
    })
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_runtime_ends_its_streams_and_nothing_runs_again() {
    in_time(async {
        let server = Server::start().await;
        let client = server.client().await;
        let well = client.create().name("well").send().await.unwrap().sandbox;
        let unhurt = Count::long(60);
        let mut unhurt_exec = well.exec(unhurt.command(&new_id("well")));
        let lively = Lively::begin(&server, "hurt").await;
        let raw = follow_raw(&client, "hurt", &lively.endless[0].0.id);
        let run = Command::shell("echo run >> /workspace/ran; echo up >&2; exec sleep 1000").id("run");
        let running = tokio::spawn(lively.sandbox.run(run).send());
        has_printed(&lively.sandbox, "run").await;
        let incarnation = lively.incarnation.clone();
        kill(server.sandbox_pid("hurt"));
        let status = raw.await.unwrap();
        assert_eq!(reason(&status), ErrorReason::SandboxRestarted, "{status:?}");
        let refused = running.await.unwrap().unwrap_err();
        assert_eq!(refused.reason(), Some(ErrorReason::SandboxRestarted), "{refused:?}");
        assert_eq!(
            refused.refused().unwrap().metadata.get("incarnation"),
            Some(&incarnation)
        );
        let crashed = lively.check_crashed().await;
        crashed.check_comes_back().await;
        let ran = crashed
            .sandbox
            .run(Command::shell("cat /workspace/ran"))
            .send()
            .await
            .unwrap();
        assert_eq!(&ran.stdout.unwrap().head[..], b"run\n");
        let (told, error) = Told::follow(&mut unhurt_exec).await;
        assert!(error.is_none(), "another sandbox was hurt: {error:?}");
        unhurt.check(&told);
        delete_all(&server, &crashed.mark).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_runtime_that_is_killed_while_there_is_no_server_is_missed_by_the_next() {
    in_time(async {
        let mut server = Server::start().await;
        let lively = Lively::begin(&server, "hurt").await;
        server.kill();
        kill(server.sandbox_pid("hurt"));
        server.restart().await;
        let crashed = lively.check_crashed().await;
        crashed.check_comes_back().await;
        delete_all(&server, &crashed.mark).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_monitor_takes_its_sandbox_along_and_nothing_runs_again() {
    in_time(async {
        for without_server in [false, true] {
            let mut server = Server::start().await;
            let lively = Lively::begin(&server, "hurt").await;
            if without_server {
                server.kill();
            }
            let monitor = server.monitor_pid(&server.sandbox_dir("hurt")).unwrap();
            kill_process(monitor, Signal::KILL).unwrap();
            server.restart().await;
            let crashed = lively.check_crashed().await;
            crashed.check_comes_back().await;
            // One that is suspended loses nothing with its monitor.
            crashed.sandbox.suspend(None).await.unwrap();
            let monitor = server.monitor_pid(&server.sandbox_dir("hurt")).unwrap();
            kill_process(monitor, Signal::KILL).unwrap();
            let back = crashed.sandbox.resume().await.unwrap();
            assert_eq!(back.last_end.unwrap().cause(), EndCause::Suspended);
            crashed.sandbox.run(Command::shell("true")).send().await.unwrap();
            delete_all(&server, &crashed.mark).await;
        }
    })
    .await;
}
