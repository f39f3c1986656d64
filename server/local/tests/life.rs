//! The provider with the real monitor and runtime: sandboxes are made, found again, suspended, resumed and removed.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "support/world.rs"]
mod world;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use sandgate_local::Local;
use sandgate_monitor::{
    control::{Request, line},
    layout,
};
use sandgate_proto::v1::{EndCause, EnvVar, ErrorReason, SandboxState};
use sandgate_provider::{Change, End, Event, Provider as _, Selector};
use tokio::time::timeout;

use self::world::{LONG, World, parse, settings, wanted};

fn monitor_pid(world: &World, name: &str) -> u32 {
    let dir = fs::canonicalize(world.state()).unwrap().join("sandboxes").join(name);
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_it = |pid: &u32| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        program.ends_with("sandgate-monitor") && fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir)
    };
    pids.into_iter().find(is_it).unwrap()
}

fn runtime_pid(world: &World, name: &str) -> u32 {
    let status = fs::read_to_string(world.state().join("sandboxes").join(name).join("status.json")).unwrap();
    let pid = status.split("\"pid\":").nth(1).unwrap();
    pid.split(',').next().unwrap().trim().parse().unwrap()
}

fn kill(pid: u32) {
    signal(pid, "KILL");
}

fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_lives_and_leaves_nothing() {
    let world = World::new().await;
    let env = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: value.to_owned(),
        ..EnvVar::default()
    };
    let mut new = wanted("a");
    new.env = vec![env("FROM", "caller"), env("OTHER", "x")];
    let begun = world.local.create(new.clone()).await.unwrap();
    assert!(begun.created);
    assert_eq!(begun.sandbox.state(), SandboxState::Creating);
    let made = timeout(LONG, world.local.ready(&parse("a"), &begun.sandbox.uid))
        .await
        .unwrap()
        .unwrap();
    assert_eq!((made.state(), made.provider.as_str()), (SandboxState::Ready, "local"));
    assert!(!made.incarnation.is_empty() && !made.capabilities.is_empty() && !made.isolation.is_empty());
    assert!(
        made.start
            .as_ref()
            .is_some_and(|start| start.total.is_some() && start.steps.len() > 3)
    );
    assert!(made.deadline.is_some());

    let again = world.local.create(new).await.unwrap();
    assert!(!again.created && !again.resumed);
    assert_eq!(again.sandbox.uid, made.uid);
    let mut other = wanted("a");
    other.template = "plain".to_owned();
    assert_eq!(
        world.create_as(other).await.unwrap_err().reason,
        ErrorReason::SandboxAlreadyExists
    );

    let said = world
        .run("a", "e1", "echo $FROM $OTHER $LANG; pwd; echo kept > file; hostname")
        .await;
    assert_eq!(said, "caller x C.UTF-8\n/workspace\na\n");
    let usage = world.local.usage(&parse("a")).await.unwrap();
    assert!(usage.disk_bytes.is_some_and(|bytes| bytes > 0), "{usage:?}");

    let suspended = world
        .local
        .suspend(&parse("a"), Some(&made.incarnation), Duration::from_secs(1))
        .await
        .unwrap();
    let end = suspended.last_end.clone().unwrap();
    assert_eq!(
        (suspended.state(), end.cause()),
        (SandboxState::Suspended, EndCause::Suspended)
    );
    assert_eq!(end.incarnation, made.incarnation);
    // The answer was lost, and the call is repeated.
    world
        .local
        .suspend(&parse("a"), Some(&made.incarnation), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(
        world.local.link(&parse("a")).unwrap_err().reason,
        ErrorReason::SandboxSuspended
    );

    let resumed = world.resume("a").await.unwrap();
    assert_ne!(resumed.incarnation, made.incarnation);
    assert_eq!(world.run("a", "e2", "cat file; echo $FROM").await, "kept\ncaller\n");
    let wrong = world
        .local
        .suspend(&parse("a"), Some(&made.incarnation), Duration::ZERO)
        .await;
    assert_eq!(wrong.unwrap_err().reason, ErrorReason::SandboxRestarted);

    let removed = world.local.delete(&parse("a"), None, None).await.unwrap();
    assert!(removed.existed && removed.uid == made.uid && removed.incarnation == resumed.incarnation);
    assert_eq!(world.state_of("a"), None);
    assert!(!world.local.delete(&parse("a"), None, None).await.unwrap().existed);
    let last = world
        .local
        .table()
        .since(world.local.table().snapshot(&Selector::all()).1)
        .unwrap()
        .0;
    assert!(last.is_empty(), "{last:?}");
    world.assert_empty().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_finds_everything_again() {
    let mut world = World::new().await;
    let first = world.create("a").await.unwrap();
    world.create("b").await.unwrap();
    let b = world.local.suspend(&parse("b"), None, Duration::ZERO).await.unwrap();
    world
        .run("a", "e1", "sleep 600 > /dev/null 2>&1 & echo here > mark")
        .await;
    world.reopen().await;
    // At once, without waiting for anything.
    assert_eq!(*world.local.table().get("a").unwrap(), *first);
    assert_eq!(*world.local.table().get("b").unwrap(), *b);
    assert_eq!(world.run("a", "e2", "cat mark").await, "here\n");
    assert_eq!(world.create("b").await.unwrap().uid, b.uid);

    let change = Change {
        end: Some(End::After(Duration::from_secs(1000))),
        labels: Some(BTreeMap::new()),
        etag: Some(first.etag.clone()),
        ..Change::default()
    };
    let changed = world.local.update(&parse("a"), change.clone()).await.unwrap();
    assert_ne!(changed.etag, first.etag);
    assert!(changed.labels.is_empty());
    let stale = world.local.update(&parse("a"), change).await.unwrap_err();
    assert_eq!(stale.reason, ErrorReason::EtagMismatch);
    world.reopen().await;
    assert_eq!(world.local.table().get("a").unwrap().deadline, changed.deadline);

    let removed = world
        .local
        .delete(&parse("a"), None, Some(Duration::from_secs(1)))
        .await
        .unwrap();
    assert_eq!(removed.execs_ended, 1);
    world.local.delete(&parse("b"), None, None).await.unwrap();
    world.assert_empty().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_killed_is_suspended_with_a_reason() {
    let mut world = World::new().await;
    for name in ["runtime", "monitor", "away"] {
        world.create(name).await.unwrap();
    }
    let seen = world.local.table().get("runtime").unwrap();
    kill(runtime_pid(&world, "runtime"));
    assert_eq!(world.local.lost(&seen).await.reason, ErrorReason::SandboxRestarted);
    let (monitor, away) = (monitor_pid(&world, "monitor"), monitor_pid(&world, "away"));
    kill(monitor);
    for name in ["runtime", "monitor"] {
        world.until(name, Some(SandboxState::Suspended)).await;
        let end = world.local.table().get(name).unwrap().last_end.clone().unwrap();
        assert_eq!(end.cause(), EndCause::Crashed, "{end:?}");
        assert!(!end.message.is_empty());
    }
    // While no server runs.
    world.local.close().await;
    kill(away);
    world.local = Local::open(settings(&world.state())).await.unwrap();
    world.until("away", Some(SandboxState::Suspended)).await;
    for name in ["runtime", "monitor", "away"] {
        world.resume(name).await.unwrap();
        assert_eq!(world.run(name, "e1", "echo alive").await, "alive\n");
        assert!(world.local.delete(&parse(name), None, None).await.unwrap().existed);
    }
    world.assert_empty().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_asked_for_at_its_end_is_done_before_the_next_one_tells_of_it() {
    let mut world = World::new().await;
    let names = ["running", "suspended"];
    for name in names {
        world.create(name).await.unwrap();
    }
    world
        .local
        .suspend(&parse("suspended"), None, Duration::ZERO)
        .await
        .unwrap();
    world.local.close().await;
    let monitors = names.map(|name| monitor_pid(&world, name));
    for (name, monitor) in names.into_iter().zip(monitors) {
        let control = world.state().join("sandboxes").join(name).join(layout::CONTROL);
        let mut server = BufReader::new(UnixStream::connect(control).unwrap());
        server.read_line(&mut String::new()).unwrap();
        signal(monitor, "STOP");
        server.get_mut().write_all(&line(&Request::Remove).unwrap()).unwrap();
    }
    let busy = tokio::spawn(async move {
        // Long enough for a word of what lies on disk.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for monitor in monitors {
            signal(monitor, "CONT");
        }
    });
    world.local = Local::open(settings(&world.state())).await.unwrap();
    let told = names.map(|name| world.state_of(name));
    busy.await.unwrap();
    assert_eq!(told, [None, None]);
    world.assert_empty().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_made_says_why_and_leaves_nothing() {
    let world = World::new().await;
    let mut new = wanted("a");
    new.template = "impossible".to_owned();
    let refused = world.create_as(new.clone()).await.unwrap_err();
    assert_eq!(refused.reason, ErrorReason::IsolationUnavailable);
    assert_eq!(refused.metadata["mechanism"], "disk.size");
    // Also for one who asks later.
    let begun = world.local.create(new).await.unwrap();
    world.until("a", None).await;
    let late = world.local.ready(&parse("a"), &begun.sandbox.uid).await.unwrap_err();
    assert_eq!(late.reason, ErrorReason::IsolationUnavailable);

    let mut unknown = wanted("a");
    unknown.template = "nothing".to_owned();
    let unknown = world.create_as(unknown).await.unwrap_err();
    assert_eq!(unknown.reason, ErrorReason::TemplateNotFound);
    assert!(
        unknown.message.contains("default, impossible, plain"),
        "{}",
        unknown.message
    );
    let mut pool = wanted("a");
    pool.warm_pool = "p".to_owned();
    assert_eq!(
        world.create_as(pool).await.unwrap_err().field.as_deref(),
        Some("warm_pool")
    );
    let mut late = wanted("a");
    late.end = End::At(SystemTime::now() + Duration::from_secs(7200));
    assert_eq!(
        world.create_as(late).await.unwrap_err().reason,
        ErrorReason::InvalidArgument
    );

    for name in ["a", "b", "c", "d"] {
        world.create(name).await.unwrap();
    }
    let full = world.create("e").await.unwrap_err();
    assert_eq!(full.reason, ErrorReason::LimitReached);
    assert!(full.retry_after.is_some());
    world.local.suspend(&parse("a"), None, Duration::ZERO).await.unwrap();
    world.create("e").await.unwrap();
    assert_eq!(world.resume("a").await.unwrap_err().reason, ErrorReason::LimitReached);
    for name in ["a", "b", "c", "d", "e"] {
        world.local.delete(&parse(name), None, None).await.unwrap();
    }
    world.assert_empty().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_word_wins() {
    let world = World::new().await;
    let table = world.local.table();
    let name = parse("a");
    let creates: Vec<_> = (0..8)
        .map(|_| {
            let local = Arc::clone(&world.local);
            tokio::spawn(async move { local.create(wanted("a")).await.unwrap() })
        })
        .collect();
    let mut made = 0;
    for create in creates {
        made += u32::from(create.await.unwrap().created);
    }
    assert_eq!(made, 1);
    // In this order, and nobody waits for another: the queue keeps it.
    let first = table.get("a").unwrap();
    let suspend = world.local.suspend(&name, None, Duration::ZERO);
    let resume = async {
        world.local.resume(&name).await.unwrap();
        world.local.ready(&name, &first.uid).await.unwrap()
    };
    let (suspended, resumed) = tokio::join!(suspend, resume);
    assert_eq!(suspended.unwrap().state(), SandboxState::Suspended);
    assert_eq!(resumed.state(), SandboxState::Ready);

    let delete = world.local.delete(&name, None, Some(Duration::from_secs(30)));
    let create = world.create("a");
    let (deleted, created) = tokio::join!(delete, create);
    let (deleted, created) = (deleted.unwrap(), created.unwrap());
    assert!(deleted.existed && deleted.uid == first.uid && created.uid != first.uid);
    // Only what it says: this one has another uid.
    assert!(!world.local.delete(&name, Some(&first.uid), None).await.unwrap().existed);

    // A caller with less patience hastens the others.
    let suspend = world.local.suspend(&name, None, Duration::from_secs(300));
    let delete = world.local.delete(&name, None, None);
    world.run("a", "deaf", "trap '' TERM; sleep 600 & exit 0").await;
    let (_, deleted) = timeout(LONG, async { tokio::join!(suspend, delete) }).await.unwrap();
    assert!(deleted.unwrap().existed);
    world.assert_empty().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_is_kept_with_and_without_a_server() {
    let mut world = World::new().await;
    let (_, start) = world.local.table().snapshot(&Selector::all());
    for name in ["runs", "rests", "away"] {
        let mut new = wanted(name);
        new.end = End::After(Duration::from_secs(3));
        world.create_as(new).await.unwrap();
    }
    world
        .local
        .suspend(&parse("rests"), None, Duration::ZERO)
        .await
        .unwrap();
    for name in ["runs", "rests", "away"] {
        world.until(name, None).await;
    }
    let events = world.local.table().since(start).unwrap().0;
    let causes: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Gone { told, .. } => Some(told.cause()),
            Event::Put { .. } => None,
        })
        .collect();
    assert_eq!(causes, [EndCause::Deadline; 3]);
    let mut new = wanted("alone");
    new.idle_limit = Some(Duration::from_secs(1));
    world.create_as(new).await.unwrap();
    world.local.close().await;
    world.assert_empty().await;
    world.reopen().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_processes_are_for_development() {
    let world = World::new().await;
    let mut new = wanted("a");
    new.template = "plain".to_owned();
    let made = world.create_as(new).await.unwrap();
    assert!(made.isolation.iter().all(|mechanism| !mechanism.in_force));
    assert_eq!(world.run("a", "e1", "echo $FROM").await, "template\n");
    world.local.delete(&parse("a"), None, None).await.unwrap();
    world.assert_empty().await;
    world.local.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_server_left_half_made_is_removed() {
    let mut world = World::new().await;
    world.local.close().await;
    let state = world.state();
    fs::create_dir(state.join("new/1")).unwrap();
    fs::create_dir_all(state.join("trash/2/disk/upper")).unwrap();
    fs::create_dir(state.join("sandboxes/broken")).unwrap();
    world.reopen().await;
    assert_eq!(world.state_of("broken"), None);
    assert_eq!(fs::read_dir(state.join("damaged")).unwrap().count(), 1);
    world.create("broken").await.unwrap();
    world.local.delete(&parse("broken"), None, None).await.unwrap();
    fs::remove_dir_all(state.join("damaged")).unwrap();
    fs::create_dir(state.join("damaged")).unwrap();
    world.assert_empty().await;
    world.local.close().await;
}
