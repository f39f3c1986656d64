//! The bidirectional `Exec`: events out, stdin and controls in, on one stream.

use std::{sync::Arc, time::Duration};

use sandgate_errors::Refusal;
use sandgate_exec::{Awaits, Events, Exec, task};
use sandgate_proto::{
    runtime::v1::{
        self as proto, Heartbeat, StdinWrite, exec_event::Event, exec_request::Request, exec_response::Response,
    },
    v1::ErrorReason,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::{Status, Streaming};

use super::Service;
use crate::{
    clock::Call,
    stream::{Answers, Source, answers},
};

/// Writes to stdin that are queued while the program does not read. Behind them further messages wait.
const QUEUED_WRITES: usize = 4;
const QUEUED_ANSWERS: usize = 16;
/// A stream waits for the program as long as it lives.
const NO_END: Duration = Duration::from_secs(u32::MAX as u64);

/// What comes out: events, and answers to what came in.
struct Outgoing {
    events: Events,
    answers: mpsc::Receiver<Result<Response, Status>>,
    /// Nothing comes in any more: only events are left.
    input_ended: bool,
    _input: Abort,
    _call: Call,
}

/// What comes in.
struct Incoming {
    exec: Arc<Exec>,
    writes: mpsc::Sender<StdinWrite>,
    answers: mpsc::Sender<Result<Response, Status>>,
}

/// Work that ends with its owner.
struct Abort(JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) async fn exec(
    service: &Service,
    mut requests: Streaming<proto::ExecRequest>,
) -> Result<Answers<proto::ExecResponse>, Status> {
    let call = service.call();
    let first = requests.message().await?.and_then(|message| message.request);
    let (exec, events, writer) = match first {
        Some(Request::Start(start)) => {
            service.identity.expect(&start.expected_incarnation)?;
            let attach = |exec: &Arc<Exec>| Events::new(exec.clone(), start.from.as_ref(), true);
            let spec = start.spec.unwrap_or_default();
            let (exec, _, events) = service
                .execs
                .start_attached(&start.exec_id, spec, Awaits::Start, attach)
                .await?;
            (exec, events, start.writer)
        }
        Some(Request::Attach(attach)) => {
            service.identity.expect(&attach.expected_incarnation)?;
            let exec = service.execs.get(&attach.exec_id)?;
            exec.settled().await?;
            (
                exec.clone(),
                Events::new(exec, attach.from.as_ref(), true),
                attach.writer,
            )
        }
        _ => return Err(Refusal::invalid("request", "the first message is start or attach").into()),
    };
    let (writes, queued) = mpsc::channel(QUEUED_WRITES);
    let (answers_in, answers_out) = mpsc::channel(QUEUED_ANSWERS);
    let writing = Abort(task::spawn(
        "write stdin",
        exec.id(),
        write(exec.clone(), writer, queued, answers_in.clone()),
    ));
    let incoming = Incoming {
        exec: exec.clone(),
        writes,
        answers: answers_in,
    };
    let input = Abort(task::spawn("read requests", exec.id(), async move {
        let _writing = writing;
        incoming.take(requests).await;
    }));
    let outgoing = Outgoing {
        events,
        answers: answers_out,
        input_ended: false,
        _input: input,
        _call: call,
    };
    Ok(answers(outgoing, heartbeat))
}

/// Writes what is queued, one after the other, and says how far it came.
async fn write(
    exec: Arc<Exec>,
    writer: String,
    mut queued: mpsc::Receiver<StdinWrite>,
    answers: mpsc::Sender<Result<Response, Status>>,
) {
    while let Some(write) = queued.recv().await {
        let answer = match exec.write(&writer, &write, NO_END).await {
            // The program did not want it any more. How it ends is what the stream is for.
            Err(refusal) if refusal.reason == ErrorReason::StdinClosed => Ok(exec.stdin_accepted()),
            answer => answer,
        };
        let answer = answer.map(Response::Stdin).map_err(Status::from);
        if answers.send(answer).await.is_err() {
            return;
        }
    }
}

// === impl Incoming ===

impl Incoming {
    /// Takes messages until the caller detaches or closes its side. A refusal ends the stream; the exec runs on.
    async fn take(self, mut requests: Streaming<proto::ExecRequest>) {
        while let Ok(Some(message)) = requests.message().await {
            let refused = match message.request {
                Some(Request::Detach(_)) => {
                    let _ = self.answers.send(Err(Status::ok("detached"))).await;
                    return;
                }
                Some(request) => self.one(request).await.err(),
                // A message from a newer caller that we do not understand.
                None => Some(Refusal::invalid("request", "this runtime does not know that message")),
            };
            if let Some(refusal) = refused {
                let _ = self.answers.send(Err(refusal.into())).await;
                return;
            }
        }
        // Keep the queue of writes alive until the stream ends: what was sent is written.
        self.answers.closed().await;
    }

    async fn one(&self, request: Request) -> Result<(), Refusal> {
        match request {
            Request::Stdin(write) => {
                let _ = self.writes.send(write).await;
                Ok(())
            }
            Request::Resize(size) => self.exec.resize(&size),
            Request::Signal(signal) => match self.exec.signal(signal.signal).await {
                // It has ended by itself meanwhile.
                Err(refusal) if refusal.reason == ErrorReason::ExecNotRunning => Ok(()),
                outcome => outcome.map(drop),
            },
            Request::Start(_) | Request::Attach(_) | Request::Detach(_) => {
                Err(Refusal::invalid("request", "start and attach are first messages only"))
            }
        }
    }
}

// === impl Outgoing ===

impl Source for Outgoing {
    type Item = proto::ExecResponse;

    async fn next(&mut self) -> Option<Result<Self::Item, Status>> {
        let response = tokio::select! {
            answer = self.answers.recv(), if !self.input_ended => match answer {
                Some(Ok(answer)) => answer,
                // A detach: the stream ends well.
                Some(Err(status)) if status.code() == tonic::Code::Ok => return None,
                Some(Err(status)) => return Some(Err(status)),
                None => {
                    self.input_ended = true;
                    Response::Event(self.events.next().await?)
                }
            },
            event = self.events.next() => Response::Event(event?),
        };
        Some(Ok(proto::ExecResponse {
            response: Some(response),
        }))
    }
}

fn heartbeat() -> proto::ExecResponse {
    let event = proto::ExecEvent {
        event: Some(Event::Heartbeat(Heartbeat {})),
        ..Default::default()
    };
    proto::ExecResponse {
        response: Some(Response::Event(event)),
    }
}
