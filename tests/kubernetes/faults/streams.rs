//! Eight commands of one sandbox, each followed by a client of its own: they print, or give back what is written to them,
//! until there is enough of it. Each writes down that it was started.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use sandgate::{Client, Command, Error, Event, Exec, Sandbox, v1::exec_exit::Status};
use sandgate_kubernetes_tests::until;
use sandgate_tests::{conformance::sh, new_id};
use tokio::{task::JoinHandle, time};

use super::told::{Told, assert_same};

const PRINTING: usize = 5;
const ECHOING: usize = 3;
/// Where each command writes its id when it is started.
const RUNS: &str = "/workspace/runs";
/// Makes lines long enough that output is many messages.
const PADDING: &str = "................................................................";
/// How printing commands end when there was enough.
const CODE: i32 = 7;
const KILL: i32 = 9;
const TERM: i32 = 15;

/// Commands that are followed.
pub(crate) struct Streams {
    pub(crate) sandbox: Sandbox,
    ids: Vec<String>,
    /// Bytes that each follower was told.
    told: Arc<Vec<AtomicU64>>,
    over: Arc<AtomicBool>,
    followers: Vec<JoinHandle<Followed>>,
}

/// What one follower was told to the end, and what it wrote.
pub(crate) struct Followed {
    pub(crate) id: String,
    pub(crate) told: Told,
    pub(crate) error: Option<Error>,
    /// `None`: it prints.
    written: Option<Vec<u8>>,
}

// === impl Streams ===

impl Streams {
    /// Starts the commands, and waits until each was heard of. Every follower has a connection of its own.
    pub(crate) async fn begin(sandbox: &Sandbox, rng: &mut StdRng, connect: impl AsyncFn() -> Client) -> Self {
        let told: Arc<Vec<AtomicU64>> = Arc::new((0..PRINTING + ECHOING).map(|_| AtomicU64::new(0)).collect());
        let over = Arc::new(AtomicBool::new(false));
        let (mut ids, mut followers) = (Vec::new(), Vec::new());
        for number in 0..PRINTING + ECHOING {
            let id = new_id(if number < PRINTING { "print" } else { "echo" });
            let sandbox = connect().await.sandbox(sandbox.name());
            let (heard, over, rng) = (
                Arc::clone(&told),
                Arc::clone(&over),
                StdRng::seed_from_u64(rng.next_u64()),
            );
            ids.push(id.clone());
            followers.push(tokio::spawn(async move {
                match number < PRINTING {
                    true => print(&sandbox, id, &heard[number]).await,
                    false => echo(&sandbox, id, &heard[number], &over, rng).await,
                }
            }));
        }
        let streams = Self {
            sandbox: sandbox.clone(),
            ids,
            told,
            over,
            followers,
        };
        streams.until_all_go_on().await;
        streams
    }

    /// Waits until each follower was told something that it had not been told at this call.
    pub(crate) async fn until_all_go_on(&self) {
        let now = || self.told.iter().map(|told| told.load(Ordering::Relaxed));
        let before: Vec<u64> = now().collect();
        until(async || now().zip(&before).all(|(now, before)| now > *before)).await;
    }

    /// Lets them end, and sees to it that each byte came once and each command ran once.
    pub(crate) async fn finish(self) {
        self.over.store(true, Ordering::Relaxed);
        sh(&self.sandbox, "touch /workspace/enough").await;
        let (sandbox, ids) = (self.sandbox.clone(), self.ids.clone());
        let mut bytes = 0;
        for followed in self.ended().await {
            bytes += followed.told.stdout.len() + followed.told.stderr.len();
            followed.check_whole();
        }
        println!("{} streams, {bytes} bytes, each once", ids.len());
        assert_same_runs(&runs(&sandbox).await, &ids);
        sh(&sandbox, "rm /workspace/enough /workspace/runs").await;
    }

    /// What each follower was told, once all have come to an end.
    pub(crate) async fn ended(self) -> Vec<Followed> {
        let mut all = Vec::new();
        for follower in self.followers {
            all.push(follower.await.unwrap());
        }
        all
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.ids.clone()
    }
}

/// Ids of commands that were started, as they wrote them down.
pub(crate) async fn runs(sandbox: &Sandbox) -> Vec<String> {
    let text = sh(sandbox, &format!("touch {RUNS}; cat {RUNS}")).await;
    text.lines().map(str::to_owned).collect()
}

/// Each was started once.
pub(crate) fn assert_same_runs(runs: &[String], ids: &[String]) {
    let sorted = |ids: &[String]| {
        let mut ids = ids.to_vec();
        ids.sort();
        ids
    };
    assert_eq!(sorted(runs), sorted(ids), "each command ran once");
}

/// Prints until there is a file that says that it is enough, and then how many lines there were.
async fn print(sandbox: &Sandbox, id: String, heard: &AtomicU64) -> Followed {
    let script = format!(
        "echo {id} >> {RUNS}
        n=0
        until [ -e /workspace/enough ]; do
            for _ in 1 2 3 4 5 6 7 8; do echo \"{id} out $n $PADDING\"; echo \"{id} err $n\" >&2; n=$((n + 1)); done
            sleep 0.1
        done
        echo $n
        exit {CODE}"
    );
    let command = Command::shell(script).env("PADDING", PADDING).id(&id);
    let (told, error) = follow(&mut sandbox.exec(command), heard).await;
    Followed {
        id,
        told,
        error,
        written: None,
    }
}

/// Writes random bytes, and reads them again.
async fn echo(sandbox: &Sandbox, id: String, heard: &AtomicU64, over: &AtomicBool, mut rng: StdRng) -> Followed {
    let command = Command::shell(format!("echo {id} >> {RUNS}; exec cat")).id(&id).stdin();
    let mut exec = sandbox.exec(command);
    let mut stdin = exec.stdin().unwrap();
    let writing = async {
        let mut written = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let mut bytes = vec![0; rng.random_range(1..5_000)];
            rng.fill_bytes(&mut bytes);
            written.extend_from_slice(&bytes);
            if stdin.write(bytes).await.is_err() {
                return written;
            }
            time::sleep(Duration::from_millis(rng.random_range(0..200))).await;
        }
        // Whether it arrived is seen by what comes back.
        let _ = stdin.close().await;
        written
    };
    let (written, (told, error)) = tokio::join!(writing, follow(&mut exec, heard));
    Followed {
        id,
        told,
        error,
        written: Some(written),
    }
}

async fn follow(exec: &mut Exec, heard: &AtomicU64) -> (Told, Option<Error>) {
    let mut told = Told::default();
    loop {
        match exec.next().await {
            Some(Ok(event)) => {
                if let Event::Output { data, .. } = &event {
                    heard.fetch_add(data.len() as u64, Ordering::Relaxed);
                }
                told.take(event);
            }
            Some(Err(error)) => return (told, Some(error)),
            None => return (told, None),
        }
    }
}

// === impl Followed ===

impl Followed {
    /// Every byte came once, and the command ended as it should.
    fn check_whole(&self) {
        assert!(self.error.is_none(), "{}: {:?}", self.id, self.error);
        match &self.written {
            Some(written) => self.told.check_whole(written, b"", 0),
            None => {
                let text = std::str::from_utf8(&self.told.stdout).unwrap();
                let lines: u64 = text.lines().last().unwrap().parse().unwrap();
                let (stdout, stderr) = self.printed(lines);
                let stdout = format!("{stdout}{lines}\n");
                self.told.check_whole(stdout.as_bytes(), stderr.as_bytes(), CODE);
            }
        }
    }

    /// What came is the beginning of what it wrote, each byte once, and it did not end well: by an error, or by a signal
    /// of the runtime, which ends what it runs when it is itself told to end.
    pub(crate) fn check_beginning(&self) {
        let (exit, id) = (self.told.exit.as_ref(), &self.id);
        let by_signal = exit.is_some_and(|exit| matches!(exit.status, Some(Status::Signal(TERM | KILL))));
        assert!(
            by_signal || exit.is_none() && self.error.is_some(),
            "{id} ended well: {exit:?}"
        );
        assert_eq!(self.told.started, 1, "{id}");
        let (stdout, stderr) = (&self.told.stdout, &self.told.stderr);
        match &self.written {
            Some(written) => assert_same("echo", stdout, &written[..stdout.len()]),
            None => {
                let lines = stdout.iter().chain(stderr).filter(|byte| **byte == b'\n').count();
                let (out, err) = self.printed(lines as u64 + 1);
                assert_same("stdout", stdout, &out.as_bytes()[..stdout.len()]);
                assert_same("stderr", stderr, &err.as_bytes()[..stderr.len()]);
            }
        }
    }

    fn printed(&self, lines: u64) -> (String, String) {
        let id = &self.id;
        let out = (0..lines).map(|n| format!("{id} out {n} {PADDING}\n")).collect();
        (out, (0..lines).map(|n| format!("{id} err {n}\n")).collect())
    }
}
