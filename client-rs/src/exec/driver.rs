//! The task behind an exec: opens streams, one after the other, until the exec is over.

use std::{collections::VecDeque, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{
    event::Event,
    stdin::{Input, Unaccepted},
    track::Tracker,
};
use crate::{
    client::RawClient,
    command::at,
    error::{Error, Result},
    retry::Outage,
    v1::{self, exec_request::Request, exec_response::Response},
};

// A server sends a heartbeat every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// The first message of each stream.
#[derive(Debug)]
pub(super) enum Opening {
    /// Starts it. Repeated as it is until it is known to run: the id makes sure that it runs once.
    Start(Box<v1::ExecStart>),
    /// Only follows it.
    Attach(v1::ExecAttach),
}

pub(super) struct Driver {
    pub(super) raw: RawClient,
    pub(super) opening: Opening,
    pub(super) tracker: Tracker,
    pub(super) inputs: Option<mpsc::Receiver<Input>>,
    pub(super) unaccepted: Unaccepted,
    pub(super) events: mpsc::Sender<Result<Event>>,
    pub(super) started: watch::Sender<Option<v1::ExecStarted>>,
}

/// One stream.
struct Session {
    requests: mpsc::Sender<v1::ExecRequest>,
    inbound: Streaming<v1::ExecResponse>,
    /// What is to be given out before more is read: a reader that is slow slows the stream.
    pending: VecDeque<Event>,
    heard: Instant,
}

/// How a stream ended.
enum End {
    /// The exec is over, or nobody listens.
    Over,
    /// By an error, which a new stream may help against.
    Failed(Error),
}

// === impl Driver ===

impl Driver {
    pub(super) async fn run(mut self, patience: Duration) {
        let mut outage = Outage::new(patience);
        loop {
            let error = match self.stream(&mut outage).await {
                End::Over => return,
                End::Failed(error) => error,
            };
            match outage.failed(error) {
                Ok(delay) => sleep(delay).await,
                Err(error) => {
                    _ = self.events.send(Err(error)).await;
                    return;
                }
            }
        }
    }

    async fn stream(&mut self, outage: &mut Outage) -> End {
        let (requests, outbound) = mpsc::channel(1);
        _ = requests.try_send(self.opening());
        let inbound = match self.raw.exec(ReceiverStream::new(outbound)).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => return End::Failed(status.into()),
        };
        self.unaccepted.rewind();
        let session = Session {
            requests,
            inbound,
            pending: VecDeque::new(),
            heard: Instant::now(),
        };
        self.session(session, outage).await
    }

    async fn session(&mut self, mut session: Session, outage: &mut Outage) -> End {
        // Clones, because a place that is reserved borrows its channel.
        let (events, requests) = (self.events.clone(), session.requests.clone());
        loop {
            if self.tracker.ended() && session.pending.is_empty() {
                return End::Over;
            }
            tokio::select! {
                permit = events.reserve(), if !session.pending.is_empty() => match permit {
                    Ok(permit) => {
                        if let Some(event) = session.pending.pop_front() {
                            permit.send(Ok(event));
                        }
                        session.heard = Instant::now();
                    }
                    Err(_) => return End::Over,
                },
                message = session.inbound.message(), if session.pending.is_empty() => {
                    if let Err(error) = self.take(message, &mut session.pending) {
                        return End::Failed(error);
                    }
                    session.heard = Instant::now();
                    outage.over();
                    if self.tracker.ended() {
                        self.settle_stdin(outage).await;
                    }
                }
                // A stream that takes no more requests is about to say why.
                Ok(permit) = requests.reserve(), if self.unaccepted.has_unsent() => {
                    if let Some(write) = self.unaccepted.next() {
                        permit.send(request(Request::Stdin(write)));
                    }
                }
                Some(input) = next(&mut self.inputs), if self.unaccepted.has_room() => self.unaccepted.push(input),
                () = sleep_until(session.heard + SILENCE), if session.pending.is_empty() => {
                    let status = Status::unavailable(format!("nothing was heard for {} s", SILENCE.as_secs()));
                    return End::Failed(status.into());
                }
            }
        }
    }

    fn take(
        &mut self,
        message: std::result::Result<Option<v1::ExecResponse>, Status>,
        new: &mut VecDeque<Event>,
    ) -> Result<()> {
        // Streams of execs that are not over do not end well; a proxy may have cut it.
        let message = message?.ok_or_else(|| Status::unavailable("the stream ended before the exec did"))?;
        match message.response {
            Some(Response::Event(event)) => {
                if let Some(event) = event.event {
                    self.tracker.take(event, new);
                }
                if self.started.borrow().is_none() && self.tracker.started().is_some() {
                    self.started.send_replace(self.tracker.started().cloned());
                }
            }
            Some(Response::Stdin(accepted)) => self.unaccepted.accepted(accepted),
            None => {}
        }
        Ok(())
    }

    /// Asks how far stdin came. Who closed it may have lost the answer with an earlier stream, and what is over takes
    /// no write that would be answered again.
    async fn settle_stdin(&mut self, outage: &mut Outage) {
        while self.unaccepted.is_unsettled() {
            let error = match self.raw.get_exec(self.opening.look()).await {
                Ok(answer) => {
                    let offset = answer.into_inner().exec.map_or(0, |exec| exec.stdin_offset);
                    return self.unaccepted.accepted(v1::StdinAccepted { offset, closed: true });
                }
                Err(status) => status.into(),
            };
            match outage.failed(error) {
                Ok(delay) => sleep(delay).await,
                // What was not heard of counts as not accepted.
                Err(_) => return,
            }
        }
    }

    fn opening(&self) -> v1::ExecRequest {
        let from = Some(at(self.tracker.seen()));
        let first = match (&self.opening, self.tracker.started()) {
            (Opening::Start(start), Some(started)) => Request::Attach(v1::ExecAttach {
                sandbox: start.sandbox.clone(),
                exec_id: start.exec_id.clone(),
                expected_incarnation: started.incarnation.clone(),
                auto_resume: false,
                from,
                writer: start.writer.clone(),
            }),
            (Opening::Start(start), None) => Request::Start(v1::ExecStart {
                from,
                ..(**start).clone()
            }),
            (Opening::Attach(attach), _) => Request::Attach(v1::ExecAttach { from, ..attach.clone() }),
        };
        request(first)
    }
}

// === impl Opening ===

impl Opening {
    /// Asks for the exec as it is.
    fn look(&self) -> v1::GetExecRequest {
        let (sandbox, exec_id) = match self {
            Self::Start(start) => (&start.sandbox, &start.exec_id),
            Self::Attach(attach) => (&attach.sandbox, &attach.exec_id),
        };
        v1::GetExecRequest {
            sandbox: sandbox.clone(),
            exec_id: exec_id.clone(),
            auto_resume: false,
        }
    }
}

fn request(request: Request) -> v1::ExecRequest {
    v1::ExecRequest { request: Some(request) }
}

/// What the writer hands over next. Nothing when there is none, or no more.
async fn next(inputs: &mut Option<mpsc::Receiver<Input>>) -> Option<Input> {
    inputs.as_mut()?.recv().await
}
