//! Following commands over connections that break, against a fake server.
//!
//! Each random test prints its seed. `SANDGATE_TEST_SEED` repeats one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake;
mod proxy;
mod service;

use std::{
    collections::HashMap,
    env,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use fake::{Fake, Running, TOKEN};
use proxy::Proxy;
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use sandgate::{Client, Command, Endpoint, Error, Event, OutputStream, Sandbox, v1};

const ROUNDS: u64 = 6;

/// A fake behind a proxy that cuts each connection after at most `most` bytes, and a client of it.
struct Bench {
    running: Running,
    proxy: Proxy,
    sandbox: Sandbox,
}

impl Bench {
    async fn new(seed: u64, most: u64) -> Self {
        let running = Fake::start(seed, most > 0).await;
        let proxy = Proxy::start(running.address.clone(), seed, most).await;
        let sandbox = client(&proxy.address, TOKEN).await.sandbox("demo");
        Self {
            running,
            proxy,
            sandbox,
        }
    }

    fn runs(&self) -> HashMap<String, u32> {
        let world = self.running.fake.world.lock().unwrap();
        world.execs.iter().map(|(id, exec)| (id.clone(), exec.runs)).collect()
    }
}

async fn client(address: &str, token: &str) -> Client {
    let endpoint = Endpoint::new(address.parse().unwrap()).with_token(token).unwrap();
    Client::connect(endpoint).await.unwrap()
}

fn seeds() -> impl Iterator<Item = u64> {
    let (first, rounds) = match env::var("SANDGATE_TEST_SEED") {
        Ok(seed) => (seed.parse().unwrap(), 1),
        Err(_) => (
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
            ROUNDS,
        ),
    };
    (first..first + rounds).inspect(|seed| eprintln!("seed {seed}"))
}

/// All that an exec gave.
#[derive(Default, Debug)]
struct Told {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    lives: Vec<&'static str>,
}

impl Told {
    fn take(&mut self, event: Event) {
        match event {
            Event::Output { stream, offset, data } => {
                let all = match stream {
                    OutputStream::Stdout => &mut self.stdout,
                    OutputStream::Stderr => &mut self.stderr,
                };
                assert_eq!(offset, all.len() as u64, "{stream:?}");
                all.extend_from_slice(&data);
            }
            Event::Started(_) => self.lives.push("started"),
            Event::Exited(_) => self.lives.push("exited"),
            Event::Ended(_) => self.lives.push("ended"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_once_and_in_order_and_nothing_runs_twice() {
    let mut cuts = 0;
    for seed in seeds() {
        let bench = Bench::new(seed, 60_000).await;
        let script = format!("{seed} 400000");
        let mut exec = bench.sandbox.exec(Command::shell(script.clone()).id("e"));
        let mut told = Told::default();
        while let Some(event) = exec.next().await {
            told.take(event.unwrap());
        }
        let spec = v1::ExecSpec {
            command: Some(v1::exec_spec::Command::Shell(script)),
            ..Default::default()
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for piece in fake::made_up(&spec).0 {
            match piece.stream {
                v1::OutputStream::Stderr => stderr.extend_from_slice(&piece.data),
                _ => stdout.extend_from_slice(&piece.data),
            }
        }
        assert!(told.stdout == stdout && told.stderr == stderr, "seed {seed}");
        assert_eq!(told.lives, ["started", "exited", "ended"], "seed {seed}");
        assert_eq!(exec.seen().stdout, stdout.len() as u64);
        assert_eq!(bench.runs(), [("e".to_owned(), 1)].into(), "seed {seed}");
        cuts += bench.proxy.cuts.load(Ordering::SeqCst);
    }
    assert!(cuts > 0, "no connection was cut: the test shows nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_arrives_once_and_in_order() {
    for seed in seeds() {
        let bench = Bench::new(seed, 150_000).await;
        let mut exec = bench.sandbox.exec(Command::new(["cat"]).id("cat").stdin());
        let mut random = StdRng::seed_from_u64(seed);
        let mut sent = vec![0; 300_000];
        random.fill_bytes(&mut sent);
        let mut stdin = exec.stdin().unwrap();
        assert!(exec.stdin().is_none());
        let mut rest = Bytes::from(sent.clone());
        let writing = tokio::spawn(async move {
            while !rest.is_empty() {
                let length = random.random_range(1..=rest.len().min(100_000));
                stdin.write(rest.split_to(length)).await.unwrap();
            }
            stdin.flush().await.unwrap();
            stdin.close().await.unwrap();
        });
        let mut told = Told::default();
        while let Some(event) = exec.next().await {
            told.take(event.unwrap());
        }
        writing.await.unwrap();
        assert!(told.stdout == sent, "seed {seed}");
        assert_eq!(told.lives, ["started", "exited", "ended"], "seed {seed}");
        assert_eq!(bench.runs(), [("cat".to_owned(), 1)].into(), "seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_sandbox_is_told_and_nothing_is_run_again() {
    let bench = Bench::new(1, 0).await;
    let mut exec = bench.sandbox.exec(Command::new(["cat"]).id("cat").stdin());
    assert!(matches!(exec.next().await, Some(Ok(Event::Started(_)))));
    bench.running.fake.world.lock().unwrap().incarnation = "second".into();
    bench.running.fake.changed.notify_waiters();
    let error = exec.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Restarted(_)), "{error:?}");
    assert!(exec.next().await.is_none());
    assert_eq!(bench.runs(), [("cat".to_owned(), 1)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_during_an_outage_is_told_too() {
    let bench = Bench::new(1, 0).await;
    let mut exec = bench.sandbox.exec(Command::new(["cat"]).id("cat").stdin());
    assert!(matches!(exec.next().await, Some(Ok(Event::Started(_)))));
    bench.proxy.down.store(true, Ordering::SeqCst);
    bench.running.fake.world.lock().unwrap().incarnation = "second".into();
    tokio::time::sleep(Duration::from_millis(100)).await;
    bench.proxy.down.store(false, Ordering::SeqCst);
    let error = exec.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Restarted(_)), "{error:?}");
    assert_eq!(bench.runs(), [("cat".to_owned(), 1)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn patience_ends() {
    let bench = Bench::new(1, 0).await;
    let impatient = bench
        .sandbox
        .client()
        .clone()
        .with_patience(Duration::from_millis(200))
        .sandbox("demo");
    let mut exec = impatient.exec(Command::new(["cat"]).stdin());
    let mut stdin = exec.stdin().unwrap();
    assert!(matches!(exec.next().await, Some(Ok(Event::Started(_)))));
    bench.proxy.down.store(true, Ordering::SeqCst);
    let error = exec.next().await.unwrap().unwrap_err();
    assert!(matches!(error, Error::PatienceEnded { .. }), "{error:?}");
    // Handing over may just succeed; arriving can't.
    _ = stdin.write("x").await;
    assert!(matches!(stdin.flush().await, Err(Error::StdinClosed { accepted: 0 })));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_goes_on_waiting_with_the_same_id() {
    for seed in seeds() {
        let bench = Bench::new(seed, 20_000).await;
        let answer = bench.sandbox.run(Command::shell("1 10").id("r")).send().await.unwrap();
        assert_eq!(answer.exec.unwrap().state(), v1::ExecState::Exited);
        assert_eq!(bench.runs(), [("r".to_owned(), 1)].into(), "seed {seed}");
    }
    let bench = Bench::new(1, 0).await;
    let answer = bench
        .sandbox
        .run(Command::shell("1 10"))
        .wait_at_most(Duration::ZERO)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.exec.unwrap().state(), v1::ExecState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_wait_for_the_start_and_not_for_a_slow_reader() {
    let bench = Bench::new(1, 0).await;
    let exec = bench.sandbox.exec(Command::shell("1 5000000").id("e"));
    // Nothing is read from `exec`.
    assert_eq!(exec.control().signal(15).await.unwrap(), 1);
    let world = bench.running.fake.world.lock().unwrap();
    assert_eq!(world.execs["e"].signals, [(15, "first".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_is_found_again_at_its_offsets() {
    let bench = Bench::new(1, 0).await;
    let all = bench
        .sandbox
        .exec(Command::shell("5 50000").id("e"))
        .output()
        .await
        .unwrap();
    let found = v1::ExecOffsets { stdout: 100, stderr: 7 };
    let rest = bench
        .sandbox
        .exec(Command::shell("5 50000").id("e").from(found))
        .output()
        .await
        .unwrap();
    assert_eq!((all.lost, rest.lost), (0, 0));
    assert_eq!(rest.stdout, all.stdout[100.min(all.stdout.len())..]);
    let mut attached = bench.sandbox.attach_exec("e").from(found).follow();
    assert!(matches!(attached.next().await, Some(Ok(Event::Started(_)))));

    let error = bench
        .sandbox
        .exec(Command::shell("6 1").id("e"))
        .wait()
        .await
        .unwrap_err();
    assert_eq!(error.reason_name(), Some("EXEC_ALREADY_EXISTS"));
    let error = bench.sandbox.attach_exec("none").follow().wait().await.unwrap_err();
    assert_eq!(error.reason_name(), Some("EXEC_NOT_FOUND"));
    assert_eq!(bench.runs(), [("e".to_owned(), 1)].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_and_a_wrong_token_are_told() {
    let bench = Bench::new(1, 0).await;
    let stranger = client(&bench.proxy.address, "wrong").await;
    let error = stranger
        .sandbox("demo")
        .start(Command::new(["true"]))
        .await
        .unwrap_err();
    assert_eq!(error.reason_name(), Some("UNAUTHENTICATED"));
    let error = stranger
        .sandbox("demo")
        .exec(Command::new(["true"]))
        .wait()
        .await
        .unwrap_err();
    assert_eq!(error.reason_name(), Some("UNAUTHENTICATED"));

    // Bound and never listening: nobody else gets the port meanwhile.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = format!("http://{}", socket.local_addr().unwrap());
    for nowhere in ["unix:///no/such/socket", closed.as_str()] {
        let error = Client::connect(Endpoint::new(nowhere.parse().unwrap()))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::NoServer { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("nothing listens on {nowhere}"));
    }
}
