//! What clients do while things break: run commands whose every byte is known beforehand, one after the other.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::StdRng};
use sandgate::{Client, Command};
use sandgate_tests::{new_id, procs, server::Server};
use tokio::{task::JoinHandle, time};

use super::{
    connect, delete_all, runs,
    told::{Told, assert_same},
};

/// Clients that follow commands which print.
const CLIENTS: usize = 8;
/// More of them, that write to commands which echo: this many times each, at most. With few, most faults meet an end.
const ECHOES: [u32; 2] = [40, 3];
const SANDBOXES: usize = 4;
/// Makes lines long enough that the output of a command is many messages.
const PADDING: &str =
    "................................................................................................";

/// A command that prints numbered lines on both streams, slowly.
#[derive(Debug, Clone)]
pub(crate) struct Count {
    pub(crate) id: String,
    rounds: u32,
    lines: u32,
    code: i32,
}

/// Clients at work.
pub(crate) struct Work {
    mark: String,
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Done>>,
}

/// What one client did.
struct Done {
    sandbox: String,
    /// In the order in which it ran them.
    ids: Vec<String>,
}

// === impl Count ===

impl Count {
    /// Prints for a second or two.
    pub(crate) fn random(rng: &mut StdRng) -> Self {
        Self {
            id: new_id("count"),
            rounds: rng.random_range(5..25),
            lines: rng.random_range(1..40),
            code: rng.random_range(0..100),
        }
    }

    /// Prints until it is killed.
    pub(crate) fn endless() -> Self {
        Self {
            id: new_id("endless"),
            rounds: 1_000_000,
            lines: 10,
            code: 0,
        }
    }

    /// Prints for a few seconds.
    pub(crate) fn long(rounds: u32) -> Self {
        Self {
            id: new_id("long"),
            rounds,
            lines: 20,
            code: 3,
        }
    }

    pub(crate) fn command(&self, mark: &str) -> Command {
        let Self {
            id,
            rounds,
            lines,
            code,
        } = self;
        let script = format!(
            "echo {id} >> /workspace/runs
            n=0; round=0
            while [ $round -lt {rounds} ]; do
                last=$((n + {lines}))
                while [ $n -lt $last ]; do
                    echo \"{id} out $n $PADDING\"; echo \"{id} err $n\" >&2
                    n=$((n + 1))
                done
                round=$((round + 1)); sleep 0.05
            done
            exit {code}"
        );
        marked(Command::shell(script), mark).env("PADDING", PADDING).id(id)
    }

    /// What it writes to stdout and stderr: as much of it as `most` rounds print.
    pub(crate) fn output(&self, most: u32) -> (Vec<u8>, Vec<u8>) {
        let lines = 0..self.rounds.min(most) * self.lines;
        let stdout = lines
            .clone()
            .map(|n| format!("{} out {n} {PADDING}\n", self.id))
            .collect::<String>();
        let stderr = lines.map(|n| format!("{} err {n}\n", self.id)).collect::<String>();
        (stdout.into_bytes(), stderr.into_bytes())
    }

    pub(crate) fn check(&self, told: &Told) {
        let (stdout, stderr) = self.output(self.rounds);
        told.check_whole(&stdout, &stderr, self.code);
    }
}

/// Marks a command, so that its processes are found wherever they are.
pub(crate) fn marked(command: Command, mark: &str) -> Command {
    command.env("SANDGATE_TEST_MARK", mark)
}

// === impl Work ===

impl Work {
    /// Makes the sandboxes and lets the clients begin, each with its own connection to that socket.
    pub(crate) async fn begin(server: &Server, socket: &Path, rng: &mut StdRng) -> Self {
        let client = server.client().await;
        for number in 0..SANDBOXES {
            client.create().name(name(number)).send().await.unwrap();
        }
        let mark = new_id("work");
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for number in 0..CLIENTS + ECHOES.len() {
            let (client, rng) = (connect(socket).await, StdRng::seed_from_u64(rng.next_u64()));
            let (mark, over, sandbox) = (mark.clone(), Arc::clone(&over), name(number % SANDBOXES));
            clients.push(match number.checked_sub(CLIENTS) {
                None => tokio::spawn(count(client, sandbox, rng, mark, over)),
                Some(echoing) => tokio::spawn(echo(client, sandbox, rng, mark, over, ECHOES[echoing])),
            });
        }
        Self { mark, over, clients }
    }

    /// Lets the clients finish, and sees to it that each command ran once and nothing is left. All that each was told
    /// was compared as it came.
    pub(crate) async fn finish(self, server: &Server) {
        self.over.store(true, Ordering::Relaxed);
        let mut ran: Vec<(String, String)> = Vec::new();
        for client in self.clients {
            let Done { sandbox, ids } = client.await.unwrap();
            assert!(!ids.is_empty(), "a client did nothing");
            ran.extend(ids.into_iter().map(|id| (sandbox.clone(), id)));
        }
        println!("{} commands ran", ran.len());
        let client = server.client().await;
        for number in 0..SANDBOXES {
            let mut wanted: Vec<_> = ran
                .iter()
                .filter(|(of, _)| *of == name(number))
                .map(|(_, id)| id.clone())
                .collect();
            let mut listed = runs(&client.sandbox(name(number))).await;
            wanted.sort();
            listed.sort();
            assert_eq!(listed, wanted, "each command ran once");
        }
        procs::until("commands that ended have processes", || {
            procs::marked(&self.mark).is_empty()
        })
        .await;
        delete_all(server, &self.mark).await;
    }
}

fn name(number: usize) -> String {
    format!("work-{number}")
}

/// Runs commands one after the other, so that faults meet starts and ends too.
async fn count(client: Client, sandbox: String, mut rng: StdRng, mark: String, over: Arc<AtomicBool>) -> Done {
    let mut ids = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let count = Count::random(&mut rng);
        let mut exec = client.sandbox(&sandbox).exec(count.command(&mark));
        let (told, error) = Told::follow(&mut exec).await;
        assert!(error.is_none(), "{}: {error:?}", count.id);
        count.check(&told);
        ids.push(count.id);
    }
    Done { sandbox, ids }
}

/// Writes random bytes, and reads them again.
async fn echo(
    client: Client,
    sandbox: String,
    mut rng: StdRng,
    mark: String,
    over: Arc<AtomicBool>,
    most: u32,
) -> Done {
    let mut ids = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let id = new_id("echo");
        let command = Command::shell(format!("echo {id} >> /workspace/runs; exec cat"))
            .id(&id)
            .stdin();
        let mut exec = client.sandbox(&sandbox).exec(marked(command, &mark));
        let mut stdin = exec.stdin().unwrap();
        let writing = async {
            let mut written = Vec::new();
            for _ in 0..rng.random_range(1..=most) {
                let mut bytes = vec![0; rng.random_range(1..20_000)];
                rng.fill_bytes(&mut bytes);
                written.extend_from_slice(&bytes);
                stdin.write(Bytes::from(bytes)).await?;
                time::sleep(Duration::from_millis(rng.random_range(0..100))).await;
            }
            stdin.close().await?;
            Ok::<_, sandgate::Error>(written)
        };
        let (written, (told, error)) = tokio::join!(writing, Told::follow(&mut exec));
        assert!(error.is_none(), "{id}: {error:?}");
        let written =
            written.unwrap_or_else(|error| panic!("{id}: {error}, of {} bytes that came back", told.stdout.len()));
        assert_same("echo", &told.stdout, &written);
        told.check_whole(&written, b"", 0);
        ids.push(id);
    }
    Done { sandbox, ids }
}
