//! `kill -9` of the server, of monitors, or of both, while sandboxes are made, deleted, suspended and resumed.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use rand::{Rng as _, rngs::StdRng};
use rustix::process::{Signal, kill_process};
use sandgate::{
    Client, Command,
    v1::{self, EndCause, ErrorReason, SandboxState},
};
use sandgate_tests::{new_id, procs, seeded, server::Server};
use tokio::{task::JoinHandle, time};

use super::{
    delete_all, in_time,
    whole::{Fate, Subject},
};

/// Points at which the server is killed, for each of four calls.
const POINTS: usize = 25;
/// Points at which monitors are killed too.
const MONITOR_POINTS: usize = 10;
/// Sandboxes that the same call is made for at once: each is caught somewhere else.
const AT_ONCE: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Create,
    Delete,
    Suspend,
    Resume,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Monitors,
    Both,
}

// === impl Call ===

impl Call {
    /// Brings a sandbox to where the call makes sense.
    async fn prepare(self, subject: &Subject) {
        if self == Self::Create {
            return;
        }
        subject.make().await;
        if self == Self::Resume {
            subject.sandbox.suspend(Some(Duration::ZERO)).await.unwrap();
        }
    }

    /// Makes the call once. What is answered does not matter: nobody may be there to answer.
    fn begin(self, subject: &Subject) -> JoinHandle<Result<(), tonic::Status>> {
        let (mut raw, sandbox) = (subject.sandbox.client().raw(), subject.name.clone());
        tokio::spawn(async move {
            match self {
                Self::Create => {
                    let request = v1::CreateRequest {
                        name: sandbox,
                        ..Default::default()
                    };
                    raw.create(request).await.map(drop)
                }
                Self::Delete => {
                    let request = v1::DeleteRequest {
                        sandbox,
                        ..Default::default()
                    };
                    raw.delete(request).await.map(drop)
                }
                Self::Suspend => {
                    let request = v1::SuspendRequest {
                        sandbox,
                        ..Default::default()
                    };
                    raw.suspend(request).await.map(drop)
                }
                Self::Resume => {
                    let request = v1::ResumeRequest {
                        sandbox,
                        ..Default::default()
                    };
                    raw.resume(request).await.map(drop)
                }
            }
        })
    }
}

// === impl Victim ===

impl Victim {
    fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..3) {
            0 => Self::Server,
            1 => Self::Monitors,
            _ => Self::Both,
        }
    }

    async fn kill(self, server: &mut Server) {
        // Who listens on a socket is looked up first: a monitor of a dead server may be quick to go.
        let monitors: Vec<_> = match self {
            Self::Server => Vec::new(),
            _ => directories(server)
                .iter()
                .filter_map(|dir| server.monitor_pid(dir))
                .collect(),
        };
        if self != Self::Monitors {
            server.kill();
        }
        for monitor in monitors {
            let _ = kill_process(monitor, Signal::KILL);
            // What runs in its sandbox is told to end before it is gone.
            let gone = || matches!(procs::state(monitor.as_raw_nonzero().get()), None | Some('Z'));
            procs::until("a killed monitor lives on", gone).await;
        }
    }
}

/// Where monitors are.
fn directories(server: &Server) -> Vec<PathBuf> {
    let places = ["new", "sandboxes", "trash"].map(|place| server.state_dir().join(place));
    let dirs = places.iter().flat_map(|place| fs::read_dir(place).unwrap().flatten());
    dirs.map(|dir| dir.path()).collect()
}

fn subjects(client: &Client, mark: &str, round: &str) -> Vec<Subject> {
    let named = |number| Subject::new(client, format!("s-{round}-{number}"), mark);
    (0..AT_ONCE).map(named).collect()
}

/// How long the call takes when nothing is killed.
async fn usual_time(call: Call, client: &Client, mark: &str) -> Duration {
    let mut begun = Instant::now();
    for round in ["warm", "usual"] {
        let subjects = subjects(client, mark, round);
        for subject in &subjects {
            call.prepare(subject).await;
        }
        begun = Instant::now();
        let calls: Vec<_> = subjects.iter().map(|subject| call.begin(subject)).collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
    }
    begun.elapsed()
}

/// Kills at random points while the call is made.
async fn kill_during(call: Call, points: usize, victim: impl Fn(&mut StdRng) -> Victim) {
    let mut rng = seeded();
    let mut server = Server::start().await;
    let (client, mark) = (server.client().await, new_id("killed"));
    let (mut there, mut gone, mut answered) = (0, 0, 0);
    let usual = usual_time(call, &client, &mark).await;
    for round in 0..points {
        let subjects = subjects(&client, &mark, &round.to_string());
        for subject in &subjects {
            call.prepare(subject).await;
        }
        let calls: Vec<_> = subjects.iter().map(|subject| call.begin(subject)).collect();
        // Often in the middle, now and then before the call arrives or after its answer.
        time::sleep(usual.mul_f64(rng.random_range(0.0..1.3))).await;
        let victim = victim(&mut rng);
        victim.kill(&mut server).await;
        server.restart().await;
        for call in calls {
            answered += usize::from(call.await.unwrap().is_ok());
        }
        for subject in &subjects {
            if victim != Victim::Server {
                subject.notice().await;
            }
            if rng.random_bool(0.3) {
                subject.check_name().await;
            } else {
                match subject.check(&server, call != Call::Create).await {
                    Fate::There => there += 1,
                    Fate::Gone => gone += 1,
                }
            }
            subject.sandbox.delete().await.unwrap();
        }
    }
    println!("{call:?} takes {usual:?}: {there} are there, {gone} gone; {answered} were answered well");
    if matches!(call, Call::Suspend | Call::Resume) {
        assert_eq!(gone, 0, "{call:?} removes nothing");
    }
    delete_all(&server, &mark).await;
}

macro_rules! kill_during {
    ($($name:ident: $call:expr, $points:expr, $victim:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            in_time(kill_during($call, $points, $victim)).await;
        }
    )*};
}

kill_during! {
    the_server_is_killed_during_create: Call::Create, POINTS, |_| Victim::Server;
    the_server_is_killed_during_delete: Call::Delete, POINTS, |_| Victim::Server;
    the_server_is_killed_during_suspend: Call::Suspend, POINTS, |_| Victim::Server;
    the_server_is_killed_during_resume: Call::Resume, POINTS, |_| Victim::Server;
    monitors_are_killed_during_create: Call::Create, MONITOR_POINTS, Victim::random;
    monitors_are_killed_during_delete: Call::Delete, MONITOR_POINTS, Victim::random;
    monitors_are_killed_during_suspend: Call::Suspend, MONITOR_POINTS, Victim::random;
    monitors_are_killed_during_resume: Call::Resume, MONITOR_POINTS, Victim::random;
}

/// What it was told to end does not become READY again because somebody else looks after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspend_outlives_the_server() {
    in_time(async {
        let mut server = Server::start().await;
        let mark = new_id("stubborn");
        let created = server.client().await.create().name("stubborn").send().await.unwrap();
        let sandbox = created.sandbox;
        let stubborn = Command::shell("trap '' TERM; echo ready; while :; do sleep 0.1; done");
        let id = sandbox
            .start(stubborn.env("SANDGATE_TEST_MARK", &mark))
            .await
            .unwrap()
            .exec_id;
        while sandbox.exec_info(&id).await.unwrap().written.unwrap().stdout == 0 {}
        let mut raw = sandbox.client().raw();
        let request = v1::SuspendRequest {
            sandbox: "stubborn".to_owned(),
            grace: Some(prost_types::Duration { seconds: 3, nanos: 0 }),
            ..Default::default()
        };
        let suspending = tokio::spawn(async move { raw.suspend(request).await });
        while sandbox.get().await.unwrap().state() == SandboxState::Ready {}
        for _ in 0..2 {
            // It may be caught before the runtime was told.
            time::sleep(Duration::from_millis(100)).await;
            server.kill();
            server.restart().await;
            let now = sandbox.get().await.unwrap();
            assert!(
                matches!(now.state(), SandboxState::Suspending | SandboxState::Suspended),
                "{now:?}"
            );
        }
        suspending.await.unwrap().unwrap_err();
        let refused = sandbox.run(Command::shell("true")).send().await.unwrap_err();
        assert_eq!(refused.reason(), Some(ErrorReason::SandboxSuspended));
        let back = sandbox.attach().await.unwrap();
        assert_eq!(back.state(), SandboxState::Ready);
        assert_ne!(back.incarnation, created.info.incarnation);
        let end = back.last_end.unwrap();
        assert_eq!(
            (end.cause(), end.incarnation),
            (EndCause::Suspended, created.info.incarnation)
        );
        assert_eq!(procs::marked(&mark), []);
        delete_all(&server, &mark).await;
    })
    .await;
}

/// Behind its last word a monitor clears files and cgroups. Killed there, it leaves them to whoever looks after the trash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_monitor_is_killed_while_it_clears_away() {
    in_time(async {
        let mut server = Server::start().await;
        for also_the_server in [false, true] {
            let created = server.client().await.create().name("full").send().await.unwrap();
            let many = Command::shell("mkdir many && cd many && seq 20000 | xargs touch");
            created.sandbox.run(many).send().await.unwrap();
            let monitor = server.monitor_pid(&server.sandbox_dir("full")).unwrap();
            created.sandbox.delete().await.unwrap();
            kill_process(monitor, Signal::STOP).unwrap();
            let left = server.left();
            for kind in ["/trash/", "/sys/fs/cgroup/", "sandgate-monitor"] {
                assert!(left.iter().any(|left| left.contains(kind)), "no {kind} in {left:?}");
            }
            if also_the_server {
                server.kill();
            }
            kill_process(monitor, Signal::KILL).unwrap();
            if also_the_server {
                server.restart().await;
            }
            server.until_nothing_is_left().await;
        }
    })
    .await;
}
