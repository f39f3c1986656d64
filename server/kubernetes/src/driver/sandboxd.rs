//! agent-sandbox's sandboxd: processes by gRPC on port 9090.
//!
//! Its traps: a process dies with the stream that started it, so the stream is held here and not by a caller; stdin is open
//! until its end is sent; the exit is told up to 5 s late when a child holds the output. Its REST API for files on port
//! 8080 only reaches below one directory and can't move, copy or make directories: commands do, so files go by those.

use std::{fmt, io, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use sandgate_errors::Refusal;
use sandgate_exec::task;
use sandgate_output::Stream;
use sandgate_proto::{
    runtime::v1::{StartFailure, start_failure::Reason},
    v1::{ConnectionMode, ErrorReason},
};
use tokio::sync::mpsc;
use tonic::{
    Code, ConnectError, Status, Streaming,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

use self::wire::{
    ProcessConfig, Pty, ResizeTtyRequest, StartRequest, StartResponse, WriteStdinRequest,
    process_service_client::ProcessServiceClient, start_response, write_stdin_request::Payload,
};
use super::{
    Driver,
    inside::{Ending, Event, Input, Inside, NotStarted, Program, QUEUE, Started, Terminal},
};
use crate::dial::Dial;

/// Generated from `proto/process.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
mod wire {
    tonic::include_proto!("process.v1");
}

/// A pod with sandboxd.
pub(crate) struct Sandboxd {
    dial: Arc<dyn Dial>,
    client: ProcessServiceClient<Channel>,
}

/// One process, as sandboxd knows it.
#[derive(Clone)]
struct Process {
    client: ProcessServiceClient<Channel>,
    number: i32,
    terminal: bool,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(30);
/// As on every connection of ours: one stopped stream must not stop the others.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;
/// What ends the input of a terminal.
const END_OF_TRANSMISSION: &[u8] = &[4];
/// What was killed by a signal; which one, it does not say.
const KILLED: i32 = -1;

// === impl Sandboxd ===

impl Sandboxd {
    pub(crate) fn new(dial: Arc<dyn Dial>) -> Self {
        let way = Arc::clone(&dial);
        // Nobody resolves this name: the dial knows the way.
        let channel = Endpoint::from_static("http://sandboxd")
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEPALIVE)
            .connect_timeout(CONNECT_TIMEOUT)
            .connect_with_connector_lazy(service_fn(move |_: Uri| {
                let way = Arc::clone(&way);
                async move {
                    way.open(Driver::Sandboxd.port())
                        .await
                        .map(TokioIo::new)
                        .map_err(io::Error::other)
                }
            }));
        Self {
            dial,
            client: ProcessServiceClient::new(channel),
        }
    }
}

impl fmt::Debug for Sandboxd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sandboxd").field(&self.dial).finish()
    }
}

#[async_trait]
impl Inside for Sandboxd {
    fn driver(&self) -> Driver {
        Driver::Sandboxd
    }

    fn mode(&self) -> ConnectionMode {
        self.dial.mode()
    }

    async fn start(&self, program: Program) -> Result<Started, NotStarted> {
        let request = StartRequest {
            config: Some(ProcessConfig {
                command: program.args,
                ..ProcessConfig::default()
            }),
            pty: program.pty.map(|(columns, rows)| Pty {
                cols: columns.into(),
                rows: rows.into(),
            }),
        };
        let mut client = self.client.clone();
        let mut told = client
            .start(request)
            .await
            .map_err(|status| not_started(&status))?
            .into_inner();
        let first = told.message().await.map_err(|status| not_started(&status))?;
        let Some(start_response::Event::Init(init)) = first.and_then(|first| first.event) else {
            return Err(NotStarted::Unknown("sandboxd did not say that it runs".to_owned()));
        };
        let process = Process {
            client,
            number: init.process_id,
            terminal: program.pty.is_some(),
        };
        let stdin = match program.stdin {
            true => Some(process.clone().feed()),
            false => {
                // It has ended already if this fails.
                let _ = process.clone().write(Input::Close).await;
                None
            }
        };
        let (sender, events) = mpsc::channel(QUEUE);
        task::spawn("sandboxd", "", follow(told, sender));
        Ok(Started {
            events,
            stdin,
            terminal: program.pty.is_some().then(|| Arc::new(process) as Arc<dyn Terminal>),
        })
    }
}

/// Hands on what the process does. The process dies when this ends.
async fn follow(mut told: Streaming<StartResponse>, events: mpsc::Sender<Event>) {
    use start_response::Event as E;
    loop {
        let event = match told.message().await {
            Ok(Some(StartResponse {
                event: Some(E::Stdout(bytes)),
            })) => Event::Output(Stream::Stdout, bytes),
            Ok(Some(StartResponse {
                event: Some(E::Stderr(bytes)),
            })) => Event::Output(Stream::Stderr, bytes),
            Ok(Some(StartResponse {
                event: Some(E::Exit(exit)),
            })) => Event::Exited(match exit.exit_code {
                KILLED => Ending::Killed,
                code => Ending::Code(code),
            }),
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(status) => return tracing::debug!(%status, "the stream of a process was lost"),
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// What the refusal of a start means. It is known not to have run only if sandboxd itself says so.
fn not_started(status: &Status) -> NotStarted {
    let failed = |reason: Reason| {
        NotStarted::Failed(StartFailure {
            reason: reason.into(),
            message: status.message().to_owned(),
        })
    };
    match status.code() {
        Code::NotFound => failed(Reason::NotFound),
        Code::PermissionDenied => failed(Reason::NotExecutable),
        Code::InvalidArgument | Code::FailedPrecondition | Code::Unimplemented => failed(Reason::Unspecified),
        // The connection was never there: the channel says so when it could not be opened.
        Code::Unavailable if is_connect_error(status) => NotStarted::unreachable(status),
        _ => NotStarted::Unknown(status.to_string()),
    }
}

fn is_connect_error(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

// === impl Process ===

impl Process {
    async fn write(&mut self, input: Input) -> Result<(), Status> {
        let payload = match input {
            Input::Data(bytes) => Payload::Input(bytes),
            Input::Close if self.terminal => Payload::Input(Bytes::from_static(END_OF_TRANSMISSION)),
            Input::Close => Payload::Eof(()),
        };
        let request = WriteStdinRequest {
            process_id: self.number,
            payload: Some(payload),
        };
        self.client.write_stdin(request).await.map(drop)
    }

    fn feed(mut self) -> mpsc::Sender<Input> {
        let (sender, mut inputs) = mpsc::channel(QUEUE);
        task::spawn("stdin", "", async move {
            while let Some(input) = inputs.recv().await {
                let is_end = input == Input::Close;
                if self.write(input).await.is_err() || is_end {
                    return;
                }
            }
        });
        sender
    }
}

#[async_trait]
impl Terminal for Process {
    async fn resize(&self, columns: u16, rows: u16) -> Result<(), Refusal> {
        let request = ResizeTtyRequest {
            process_id: self.number,
            cols: columns.into(),
            rows: rows.into(),
        };
        let wrong = |status: Status| Refusal::new(ErrorReason::ExecNotRunning, status.message());
        self.client.clone().resize_tty(request).await.map(drop).map_err(wrong)
    }
}

#[cfg(test)]
mod tests;
