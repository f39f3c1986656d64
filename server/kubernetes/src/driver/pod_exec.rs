//! The pods/exec subresource, for images with nothing but a shell.
//!
//! A process started so outlives its stream: a server that goes away, or a connection that is lost, leaves it running and
//! nobody hears of its end. So a lost stream ends an exec as lost, and it is not run again.
//!
//! containerd ends a process's stdin as soon as its stdout or stderr is at its end. A program that sent its output elsewhere,
//! as the shell in `cat >file` does with its own, so got any part of what was sent (seen with containerd 1.6.20). So both
//! are held open for it.

use std::fmt;

use async_trait::async_trait;
use bytes::BytesMut;
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
    sync::mpsc,
};

use super::{
    Driver,
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

/// `sh -c HOLD sh PROGRAM ARGUMENT…`. Only for those that have a stdin: what a program leaves behind holds them too, and
/// the exec would last as long as that does.
const HOLD: &str = r#"exec 8>&1 9>&2; exec "$@""#;

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
        let args = match program.stdin {
            true => script(HOLD, &program.args.iter().map(String::as_str).collect::<Vec<_>>()),
            false => program.args,
        };
        // The process begins after the connection was upgraded: who was refused has run nothing. An answer that was lost
        // may have been a yes.
        let begun = self.pods.exec(&self.pod, args, &self.params(program.stdin)).await;
        let mut process = begun.map_err(|error| match error {
            kube::Error::Api(_) | kube::Error::UpgradeConnection(_) => NotStarted::unreachable(&error),
            error => NotStarted::Unknown(error.to_string()),
        })?;
        let (sender, events) = mpsc::channel(QUEUE);
        let stdin = process.stdin().map(feed);
        task::spawn("pod exec", &self.pod, follow(process, sender));
        Ok(Started {
            events,
            stdin,
            terminal: None,
        })
    }
}

/// Hands on what the process writes, then how it ended. If nobody listens any more, the stream is dropped.
async fn follow(mut process: AttachedProcess, events: mpsc::Sender<Event>) {
    let status = process.take_status();
    let (stdout, stderr) = (process.stdout(), process.stderr());
    // Both at once: the two share one connection, and the one that is not read stops the other.
    let copied = tokio::try_join!(
        copy(stdout, Stream::Stdout, events.clone()),
        copy(stderr, Stream::Stderr, events.clone())
    );
    let (Ok(_), Some(status)) = (copied, status) else {
        return;
    };
    if let Some(ending) = status.await.as_ref().and_then(ending) {
        let _ = events.send(Event::Exited(ending)).await;
    }
}

/// Copies to the end, unless nobody wants it any more.
async fn copy(
    reader: Option<impl AsyncRead + Unpin>,
    stream: Stream,
    events: mpsc::Sender<Event>,
) -> Result<(), mpsc::error::SendError<Event>> {
    let Some(mut reader) = reader else { return Ok(()) };
    loop {
        let mut bytes = BytesMut::with_capacity(CHUNK);
        match reader.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => events.send(Event::Output(stream, bytes.freeze())).await?,
        }
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
