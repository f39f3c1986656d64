//! A fake server: it keeps the contract of execs in memory, runs nothing, and loses its nerve at random.
//!
//! What it "runs" is a log that is made up from a seed, or an echo of stdin. It counts how often each command was run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use sandgate::v1::{self, exec_event::Event, exec_request::Request as First, exec_response::Response as Out, *};
use sandgate_errors::{Refusal, status};
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
    task::JoinHandle,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Status, Streaming, transport::Server};

pub(crate) const TOKEN: &str = "t0ken";

/// One piece of a log.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) stream: v1::OutputStream,
    pub(crate) offset: u64,
    pub(crate) data: Bytes,
}

#[derive(Default)]
pub(crate) struct FakeExec {
    pub(crate) spec: ExecSpec,
    pub(crate) incarnation: String,
    pub(crate) runs: u32,
    pub(crate) log: Vec<Piece>,
    /// Where in the log the program ends.
    pub(crate) exit_at: Option<usize>,
    pub(crate) ended: bool,
    pub(crate) stdin: Vec<u8>,
    pub(crate) stdin_closed: bool,
    pub(crate) writer: Option<String>,
    pub(crate) signals: Vec<(i32, String)>,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) execs: HashMap<String, FakeExec>,
    pub(crate) incarnation: String,
    pub(crate) calls_of_run: u32,
    /// Answers SANDBOX_RESTARTED and friends are by the contract; these are the faults.
    pub(crate) faults: bool,
}

#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) world: Arc<Mutex<World>>,
    pub(crate) changed: Arc<Notify>,
    random: Arc<Mutex<StdRng>>,
}

pub(crate) struct Running {
    pub(crate) fake: Fake,
    pub(crate) address: String,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    pub(crate) async fn start(seed: u64, faults: bool) -> Running {
        let fake = Self {
            world: Arc::new(Mutex::new(World {
                incarnation: "first".into(),
                faults,
                ..World::default()
            })),
            changed: Arc::new(Notify::new()),
            random: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = sandbox_service_server::SandboxServiceServer::with_interceptor(fake.clone(), check);
        let task = tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
        Running { fake, address, task }
    }

    pub(crate) fn chance(&self, percent: u32) -> bool {
        self.world.lock().unwrap().faults && self.below(100) < percent
    }

    fn below(&self, end: u32) -> u32 {
        self.random.lock().unwrap().random_range(0..end)
    }

    /// Starts or finds, as the contract says.
    pub(crate) fn start_or_find(&self, id: &str, expected: &str, spec: ExecSpec) -> Result<(), Status> {
        let mut world = self.world.lock().unwrap();
        world.expect(expected)?;
        let incarnation = world.incarnation.clone();
        if let Some(exec) = world.execs.get(id) {
            let same = exec.spec == spec;
            return same
                .then_some(())
                .ok_or_else(|| status(ErrorReason::ExecAlreadyExists, "another"));
        }
        let mut exec = FakeExec {
            incarnation,
            runs: 1,
            ..FakeExec::default()
        };
        if spec.stdin() != StdinMode::Open {
            (exec.log, exec.exit_at) = made_up(&spec);
            exec.ended = true;
        }
        exec.spec = spec;
        world.execs.insert(id.into(), exec);
        Ok(())
    }

    pub(crate) async fn follow(self, id: String, from: ExecOffsets, to: mpsc::Sender<Result<ExecResponse, Status>>) {
        let started = {
            let world = self.world.lock().unwrap();
            ExecStarted {
                pid: 7,
                started_at: None,
                incarnation: world.execs[&id].incarnation.clone(),
            }
        };
        let mut next = 0;
        let mut exited = false;
        if send(&to, &id, Event::Started(started)).await.is_err() {
            return;
        }
        loop {
            let changed = self.changed.notified();
            let (incarnation, piece, is_exit, over) = {
                let world = self.world.lock().unwrap();
                let exec = &world.execs[&id];
                let over = exec.ended && next == exec.log.len();
                (
                    world.incarnation.clone(),
                    exec.log.get(next).cloned(),
                    exec.exit_at == Some(next),
                    over,
                )
            };
            if incarnation != "first" {
                _ = to.send(Err(status(ErrorReason::SandboxRestarted, "restarted"))).await;
                return;
            }
            if is_exit && !exited {
                exited = true;
                if send(&to, &id, Event::Exited(exit_of(&self, &id))).await.is_err() {
                    return;
                }
            }
            if over {
                let total = self.world.lock().unwrap().execs[&id].totals();
                _ = send(&to, &id, Event::Ended(ExecEnded { total: Some(total) })).await;
                return;
            }
            let Some(piece) = piece else {
                _ = tokio::time::timeout(Duration::from_millis(20), changed).await;
                continue;
            };
            next += 1;
            let seen = match piece.stream {
                v1::OutputStream::Stderr => from.stderr,
                _ => from.stdout,
            };
            let skip = usize::try_from(seen.saturating_sub(piece.offset))
                .unwrap()
                .min(piece.data.len());
            if skip == piece.data.len() {
                continue;
            }
            if self.chance(2) {
                let end = match self.below(3) {
                    0 => status(ErrorReason::Stopping, "stopping"),
                    1 => status(ErrorReason::SandboxUnreachable, "unreachable"),
                    // A stream that ends well before its time.
                    _ => Status::ok("the end"),
                };
                _ = to.send(Err(end)).await;
                return;
            }
            let output = ExecOutput {
                stream: piece.stream.into(),
                offset: piece.offset + skip as u64,
                data: piece.data.slice(skip..),
            };
            if send(&to, &id, Event::Output(output)).await.is_err() {
                return;
            }
        }
    }

    /// Takes stdin in bits, and sometimes goes away between taking and telling.
    pub(crate) async fn take_stdin(
        self,
        id: String,
        writer: String,
        mut requests: Streaming<ExecRequest>,
        to: mpsc::Sender<Result<ExecResponse, Status>>,
    ) {
        while let Ok(Some(message)) = requests.message().await {
            let Some(First::Stdin(write)) = message.request else {
                continue;
            };
            let part = if self.chance(5) {
                self.below(write.data.len() as u32 + 1) as usize
            } else {
                write.data.len()
            };
            let whole = part == write.data.len();
            let answer = self.write(&id, &writer, write.offset, &write.data[..part], write.close && whole);
            self.changed.notify_waiters();
            let answer = match whole {
                true => answer,
                false => Err(status(ErrorReason::Stopping, "stopping in the midst of a write")),
            };
            let failed = answer.is_err();
            let answer = answer.map(|accepted| ExecResponse {
                response: Some(Out::Stdin(accepted)),
            });
            if to.send(answer).await.is_err() || failed {
                return;
            }
        }
        // As the real one: the stream goes on without input.
        to.closed().await;
    }

    fn write(&self, id: &str, writer: &str, offset: u64, data: &[u8], close: bool) -> Result<StdinAccepted, Status> {
        let mut world = self.world.lock().unwrap();
        let exec = world.execs.get_mut(id).unwrap();
        if exec.writer.get_or_insert_with(|| writer.into()) != writer {
            return Err(status(ErrorReason::StdinTaken, "taken"));
        }
        let accepted = exec.stdin.len() as u64;
        let Some(repeated) = accepted.checked_sub(offset) else {
            return Err(Refusal::new(ErrorReason::StdinGap, "gap")
                .with("accepted", accepted)
                .into());
        };
        let new = data
            .get(usize::try_from(repeated).unwrap()..)
            .unwrap_or_default()
            .to_vec();
        if !new.is_empty() {
            assert!(!exec.stdin_closed, "bytes after the close");
            exec.stdin.extend_from_slice(&new);
            exec.log.push(Piece {
                stream: v1::OutputStream::Stdout,
                offset: accepted,
                data: new.into(),
            });
        }
        if close && !exec.stdin_closed {
            exec.stdin_closed = true;
            exec.exit_at = Some(exec.log.len());
            exec.ended = true;
        }
        Ok(StdinAccepted {
            offset: exec.stdin.len() as u64,
            closed: exec.stdin_closed,
        })
    }
}

impl World {
    pub(crate) fn expect(&self, incarnation: &str) -> Result<(), Status> {
        match incarnation.is_empty() || incarnation == self.incarnation {
            true => Ok(()),
            false => Err(status(ErrorReason::SandboxRestarted, "another incarnation")),
        }
    }
}

impl FakeExec {
    pub(crate) fn totals(&self) -> ExecOffsets {
        let mut totals = ExecOffsets::default();
        for piece in &self.log {
            match piece.stream {
                v1::OutputStream::Stderr => totals.stderr += piece.data.len() as u64,
                _ => totals.stdout += piece.data.len() as u64,
            }
        }
        totals
    }
}

fn exit_of(fake: &Fake, id: &str) -> ExecExit {
    ExecExit {
        status: Some(exec_exit::Status::Code(3)),
        offsets: Some(fake.world.lock().unwrap().execs[id].totals()),
        ..ExecExit::default()
    }
}

async fn send(to: &mpsc::Sender<Result<ExecResponse, Status>>, id: &str, event: Event) -> Result<(), ()> {
    let event = ExecEvent {
        exec_id: id.into(),
        sequence: 0,
        event: Some(event),
    };
    let response = ExecResponse {
        response: Some(Out::Event(event)),
    };
    to.send(Ok(response)).await.map_err(drop)
}

/// The log of a "program": its script is the seed and the size.
pub(crate) fn made_up(spec: &ExecSpec) -> (Vec<Piece>, Option<usize>) {
    let Some(exec_spec::Command::Shell(script)) = &spec.command else {
        return (Vec::new(), Some(0));
    };
    let (seed, size) = script.split_once(' ').unwrap();
    let mut random = StdRng::seed_from_u64(seed.parse().unwrap());
    let mut left: usize = size.parse().unwrap();
    let (mut log, mut at) = (Vec::new(), [0u64; 2]);
    while left > 0 {
        let length = random.random_range(1..=left.min(9000));
        let which = random.random_range(0..2);
        let data: Vec<u8> = (0..length).map(|_| random.random()).collect();
        log.push(Piece {
            stream: [v1::OutputStream::Stdout, v1::OutputStream::Stderr][which],
            offset: at[which],
            data: data.into(),
        });
        at[which] += length as u64;
        left -= length;
    }
    let exit_at = random.random_range(0..=log.len());
    (log, Some(exit_at))
}

fn check(request: Request<()>) -> Result<Request<()>, Status> {
    let bearer = request
        .metadata()
        .get("authorization")
        .and_then(|value| value.to_str().ok());
    match bearer == Some(&format!("Bearer {TOKEN}")) {
        true => Ok(request),
        false => Err(status(ErrorReason::Unauthenticated, "no token, or a wrong one")),
    }
}
