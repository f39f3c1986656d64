//! The pods/exec subresource, for images with nothing but a shell.
//!
//! A process started so outlives its stream: a server that goes away, or a connection that is lost, leaves it running and
//! nobody hears of its end. So a lost stream ends an exec as lost, and it is not run again.
//!
//! A shell stays beside the program, for two things that were seen with containerd 1.6.20. The end of a process was not
//! told while a child of it held its output: so the shell tells the end itself, by a mark behind the output. And a program
//! that sent its output elsewhere, as the one in `cat >file` does, got only a part of its stdin: so the shell holds stdout
//! and stderr open.

use std::fmt;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Status};
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use sandgate_exec::task;
use sandgate_output::Stream;
use sandgate_proto::v1::ConnectionMode;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};

use super::{
    Driver,
    engine::random,
    inside::{CHUNK, Ending, Event, Input, Inside, NotStarted, Program, QUEUE, Started},
    wrap::script,
};
use crate::dial::Target;

/// A pod in which commands are run by the API server.
pub(crate) struct PodExec {
    pods: Api<Pod>,
    pod: String,
    container: Option<String>,
}

/// `sh -c BESIDE sh MARK PROGRAM ARGUMENT…`. A signal to the group must leave it to tell the end; only KILL does not. What
/// shells say of signals is not the program's.
const BESIDE: &str = r#"n=$1
shift
trap : HUP INT QUIT USR1 USR2 TERM
export SANDGATE_GROUP=$$
exec 9>&2 2>/dev/null
"$@" 2>&9 9>&-
c=$?
printf '%s%03d' "$n" "$c" >&9
printf '%s%03d' "$n" "$c"
exit "$c""#;
/// Digits behind a mark.
const DIGITS: usize = 3;

/// Finds the mark in one stream.
struct Scan {
    mark: Vec<u8>,
    /// What may be its beginning.
    held: BytesMut,
}

// === impl PodExec ===

impl PodExec {
    pub(crate) fn new(client: Client, target: &Target, container: Option<String>) -> Self {
        Self {
            pods: Api::namespaced(client, &target.namespace),
            pod: target.pod.clone(),
            container,
        }
    }

    fn params(&self, stdin: bool) -> AttachParams {
        let params = AttachParams::default()
            .stdin(stdin)
            .stdout(true)
            .stderr(true)
            .max_stdin_buf_size(CHUNK)
            .max_stdout_buf_size(CHUNK)
            .max_stderr_buf_size(CHUNK);
        match &self.container {
            Some(container) => params.container(container),
            None => params,
        }
    }
}

impl fmt::Debug for PodExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodExec")
            .field("pod", &self.pod)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Inside for PodExec {
    fn driver(&self) -> Driver {
        Driver::Exec
    }

    fn mode(&self) -> ConnectionMode {
        ConnectionMode::Tunnel
    }

    async fn start(&self, program: Program) -> Result<Started, NotStarted> {
        let mark = format!("sandgate-end-{:016x}-", random());
        let args: Vec<_> = [mark.as_str()]
            .into_iter()
            .chain(program.args.iter().map(String::as_str))
            .collect();
        let args = script(BESIDE, &args);
        // The process begins after the connection was upgraded: who was refused has run nothing. An answer that was lost
        // may have been a yes.
        let begun = self.pods.exec(&self.pod, args, &self.params(program.stdin)).await;
        let mut process = begun.map_err(|error| match error {
            kube::Error::Api(_) | kube::Error::UpgradeConnection(_) => NotStarted::unreachable(&error),
            error => NotStarted::Unknown(error.to_string()),
        })?;
        let (sender, events) = mpsc::channel(QUEUE);
        let stdin = process.stdin().map(feed);
        task::spawn("pod exec", &self.pod, follow(process, mark, sender));
        Ok(Started {
            events,
            stdin,
            terminal: None,
        })
    }
}

/// Hands on what the process writes, then how it ended. If nobody listens any more, the stream is dropped.
async fn follow(mut process: AttachedProcess, mark: String, events: mpsc::Sender<Event>) {
    let status = process.take_status();
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let ((of_stdout, in_stdout), (of_stderr, in_stderr)) = (oneshot::channel(), oneshot::channel());
    // Both at once: the two share one connection, and the one that is not read stops the other.
    let copied = async {
        tokio::try_join!(
            copy(stdout, Stream::Stdout, Scan::new(&mark), of_stdout, &events),
            copy(stderr, Stream::Stderr, Scan::new(&mark), of_stderr, &events)
        )
    };
    let told = async { tokio::try_join!(in_stdout, in_stderr) };
    let ending = tokio::select! {
        Ok((code, _)) = told => Some(Ending::Code(code)),
        copied = copied => match (copied, status) {
            (Ok(_), Some(status)) => status.await.as_ref().and_then(ending),
            _ => None,
        },
    };
    if let Some(ending) = ending {
        let _ = events.send(Event::Exited(ending)).await;
    }
    // What the program has left running may hold it open.
    process.abort();
}

/// Copies up to the mark and tells the code behind it; what comes after it is thrown away. Ends when the stream does, or
/// when nobody wants it any more.
async fn copy(
    reader: Option<impl AsyncRead + Unpin>,
    stream: Stream,
    mut scan: Scan,
    told: oneshot::Sender<i32>,
    events: &mpsc::Sender<Event>,
) -> Result<(), mpsc::error::SendError<Event>> {
    let Some(mut reader) = reader else { return Ok(()) };
    let mut told = Some(told);
    loop {
        let mut bytes = BytesMut::with_capacity(CHUNK);
        let is_end = !matches!(reader.read_buf(&mut bytes).await, Ok(1..));
        if told.is_some() {
            let (output, code) = if is_end { (scan.rest(), None) } else { scan.push(&bytes) };
            if !output.is_empty() {
                events.send(Event::Output(stream, output)).await?;
            }
            if let Some(code) = code {
                let _ = told.take().map(|told| told.send(code));
            }
        }
        if is_end {
            return Ok(());
        }
    }
}

// === impl Scan ===

impl Scan {
    fn new(mark: &str) -> Self {
        Self {
            mark: mark.as_bytes().to_vec(),
            held: BytesMut::new(),
        }
    }

    /// What is output for sure, and the code behind the mark once both are there.
    fn push(&mut self, bytes: &[u8]) -> (Bytes, Option<i32>) {
        self.held.extend_from_slice(bytes);
        let found = self
            .held
            .windows(self.mark.len())
            .position(|window| window == self.mark);
        let Some(at) = found else {
            let begun = (1..self.mark.len())
                .rev()
                .find(|length| self.held.ends_with(&self.mark[..*length]));
            return (self.held.split_to(self.held.len() - begun.unwrap_or(0)).freeze(), None);
        };
        let output = self.held.split_to(at).freeze();
        let code = self.held.get(self.mark.len()..self.mark.len() + DIGITS);
        (
            output,
            code.and_then(|code| std::str::from_utf8(code).ok()?.parse().ok()),
        )
    }

    /// What was held back, once nothing more comes.
    fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

/// Hands on what a program is to read.
fn feed(mut stdin: impl AsyncWrite + Unpin + Send + 'static) -> mpsc::Sender<Input> {
    let (sender, mut inputs) = mpsc::channel::<Input>(QUEUE);
    task::spawn("stdin", "", async move {
        while let Some(Input::Data(bytes)) = inputs.recv().await {
            if stdin.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = stdin.shutdown().await;
    });
    sender
}

/// What the API server says of the end: success, or a code among the causes.
fn ending(status: &Status) -> Option<Ending> {
    if status.status.as_deref() == Some("Success") {
        return Some(Ending::Code(0));
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_ref());
    let code = causes
        .into_iter()
        .flatten()
        .find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_ref()?.parse().ok());
    if code.is_none() {
        tracing::debug!(?status, "the end of a process is not understood");
    }
    // A program that the image does not have is no exit, but an error of the container runtime.
    code.or_else(|| not_there(status)).map(Ending::Code)
}

fn not_there(status: &Status) -> Option<i32> {
    let message = status.message.as_deref().unwrap_or_default();
    (message.contains("executable file not found") || message.contains("no such file")).then_some(127)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: serde_json::Value) -> Option<Ending> {
        ending(&serde_json::from_value(json).unwrap())
    }

    #[test]
    fn a_mark_is_found_wherever_the_stream_is_cut() {
        let text = b"out sandgate-end-1 sandgate-end-2 sandgate-end-2-";
        let whole = [&text[..], b"sandgate-end-2-x007rest"].concat();
        for cut in 0..=whole.len() {
            let mut scan = Scan::new("sandgate-end-2-x");
            let (first, early) = scan.push(&whole[..cut]);
            let (second, late) = if early.is_some() {
                (Bytes::new(), None)
            } else {
                scan.push(&whole[cut..])
            };
            assert_eq!([first, second].concat(), text, "{cut}");
            assert_eq!(early.or(late), Some(7), "{cut}");
        }
        let mut scan = Scan::new("sandgate-end-2-x");
        assert_eq!(scan.push(b"all sand"), ("all ".into(), None));
        assert_eq!(scan.rest(), "sand");
    }

    #[test]
    fn ends_are_read_from_the_status() {
        assert_eq!(status(serde_json::json!({"status": "Success"})), Some(Ending::Code(0)));
        let failed = serde_json::json!({"status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}});
        assert_eq!(status(failed), Some(Ending::Code(7)));
        let absent = serde_json::json!({"status": "Failure", "reason": "InternalError",
            "message": "exec: \"sh\": executable file not found in $PATH"});
        assert_eq!(status(absent), Some(Ending::Code(127)));
        assert_eq!(
            status(serde_json::json!({"status": "Failure", "message": "container is gone"})),
            None
        );
    }
}
