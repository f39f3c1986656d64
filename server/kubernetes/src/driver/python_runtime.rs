//! agent-sandbox's python-runtime: HTTP on port 8888, one request a command, and an answer when it has ended.
//!
//! It splits a command by itself, runs it without a shell and answers its output as text, once. So a few lines of shell
//! around the command keep its output in files and send it as base64. Its known traps: while it splits a long command it
//! answers nobody (1 MiB took 20 s, with 1.0.3), any mistake is told as exit code 1, and it kills what runs longer than its
//! own limit.

mod http;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use sandgate_errors::Refusal;
use sandgate_exec::task;
use sandgate_output::Stream;
use sandgate_proto::v1::{ConnectionMode, ErrorReason};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{OnceCell, mpsc},
    time::timeout,
};

use self::http::{Answered, Unanswered};
use super::{
    Driver,
    inside::{Ending, Event, Inside, NotStarted, Program, QUEUE, Started, finish},
    wrap::script,
};
use crate::dial::Dial;

/// A pod with the python-runtime.
pub(crate) struct PythonRuntime {
    dial: Arc<dyn Dial>,
    /// Where commands run and uploads arrive.
    base: OnceCell<String>,
}

#[derive(Serialize)]
struct Execute<'a> {
    command: &'a str,
}

#[derive(Deserialize)]
struct Executed {
    stdout: String,
    stderr: String,
    exit_code: i32,
}

/// `sh -c CAPTURE sh MOST PROGRAM ARGUMENT…`. Answers the code, how much there is of each stream, and as much of it as is
/// asked for. A signal to the group must leave it to tell the end; KILL does not, and takes the output with it.
const CAPTURE: &str = r#"l=$1
shift
trap : HUP INT QUIT USR1 USR2 TERM
export SANDGATE_GROUP=$$
d=$(mktemp -d) || exit 1
"$@" >"$d/o" 2>"$d/e" </dev/null
c=$?
echo "sandgate $c $(($(wc -c <"$d/o"))) $(($(wc -c <"$d/e")))"
head -c "$l" "$d/o" | base64
echo .
head -c "$l" "$d/e" | base64
rm -rf "$d""#;

/// Of each stream.
const MOST_OUTPUT: usize = 2 << 20;
/// Both streams as base64 in JSON, and what is around them.
const MOST_ANSWER: usize = 8 << 20;
/// Longer ones hold up the runtime.
const MOST_COMMAND: usize = 65_000;
/// Longer than any limit that the runtime may have: who has not answered by then never will.
const NEVER: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_secs(30);

// === impl PythonRuntime ===

impl PythonRuntime {
    pub(crate) fn new(dial: Arc<dyn Dial>) -> Self {
        Self {
            dial,
            base: OnceCell::new(),
        }
    }

    async fn base(&self) -> Result<&str, Refusal> {
        let asked = self.base.get_or_try_init(|| async {
            let finished = finish(self, script("pwd", &[])).await?;
            Ok::<_, Refusal>(String::from_utf8_lossy(&finished.stdout).trim_end().to_owned())
        });
        asked.await.map(String::as_str)
    }
}

impl fmt::Debug for PythonRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PythonRuntime").field(&self.dial).finish()
    }
}

#[async_trait]
impl Inside for PythonRuntime {
    fn driver(&self) -> Driver {
        Driver::PythonRuntime
    }

    fn mode(&self) -> ConnectionMode {
        self.dial.mode()
    }

    fn tells_start(&self) -> bool {
        false
    }

    fn most_output(&self) -> u64 {
        MOST_OUTPUT as u64
    }

    async fn greet(&self) -> Result<(), Refusal> {
        let asked = http::send(&*self.dial, Method::GET, "/", None, MOST_ANSWER);
        let late = |_| Refusal::new(ErrorReason::SandboxUnreachable, "the python-runtime does not answer");
        let answer = timeout(SHORT, asked)
            .await
            .map_err(late)?
            .map_err(Unanswered::into_refusal)?;
        match answer.status {
            StatusCode::OK => Ok(()),
            status => Err(Refusal::new(
                ErrorReason::SandboxUnreachable,
                format!(
                    "there is no python-runtime on port {}: it answers {status}",
                    Driver::PythonRuntime.port()
                ),
            )),
        }
    }

    async fn start(&self, program: Program) -> Result<Started, NotStarted> {
        let most = MOST_OUTPUT.to_string();
        let args: Vec<&str> = [most.as_str()]
            .into_iter()
            .chain(program.args.iter().map(String::as_str))
            .collect();
        let command = join(&script(CAPTURE, &args));
        if command.len() > MOST_COMMAND {
            let message = "a command of 64 KiB or more holds up the python-runtime: upload it and run the file";
            return Err(NotStarted::Refused(Refusal::invalid("spec.command", message)));
        }
        let body = serde_json::to_vec(&Execute { command: &command }).unwrap_or_default();
        let dial = Arc::clone(&self.dial);
        let (sender, events) = mpsc::channel(QUEUE);
        let (accepted, started) = tokio::sync::oneshot::channel();
        task::spawn("execute", "", async move {
            let body = Some(("application/json", http::whole(body.into())));
            let way = match dial.http(Driver::PythonRuntime.port()).await {
                Ok(way) => way,
                Err(error) => return drop(accepted.send(Err(NotStarted::unreachable(&error)))),
            };
            // From here on it may run.
            let _ = accepted.send(Ok(()));
            let asked = http::send_over(way, Method::POST, "/execute", body, MOST_ANSWER);
            match timeout(NEVER, asked).await {
                Ok(Ok(answer)) => tell(&answer, &sender).await,
                Ok(Err(error)) => tracing::debug!(%error, "the answer to a command was lost"),
                Err(_) => tracing::debug!("a command was not answered"),
            }
        });
        let lost = |_| NotStarted::Unknown("the task ended".to_owned());
        started.await.map_err(lost)??;
        Ok(Started {
            events,
            stdin: None,
            terminal: None,
        })
    }

    async fn put(&self, path: &str, content: mpsc::Receiver<Bytes>) -> Result<String, Refusal> {
        let name = path.rsplit('/').next().unwrap_or_default();
        let (kind, body) = http::form(name, content);
        let asked = http::send(&*self.dial, Method::POST, "/upload", Some((&kind, body)), MOST_ANSWER);
        let answer = asked.await.map_err(Unanswered::into_refusal)?;
        if answer.status == StatusCode::OK {
            return Ok(format!("{}/{name}", self.base().await?.trim_end_matches('/')));
        }
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        Err(Refusal::new(
            ErrorReason::FileIo,
            format!("the python-runtime refuses the upload: {said}"),
        ))
    }
}

/// Tells what a command did, as far as the answer does.
async fn tell(answer: &Answered, events: &mpsc::Sender<Event>) {
    let Some(executed) = serde_json::from_slice::<Executed>(&answer.body)
        .ok()
        .filter(|_| answer.status == StatusCode::OK)
    else {
        // Whether it ran is not known: a router in between, or a runtime that broke off.
        return tracing::debug!(status = %answer.status, "not an answer to a command");
    };
    let mut all = captured(&executed.stdout).unwrap_or_else(|| {
        // What runs around the command was killed, or could not run.
        let ending = match executed.exit_code {
            code if code < 0 => Ending::Signal(-code),
            _ if executed.stderr.contains("timed out") => Ending::Signal(9),
            code => Ending::Code(code),
        };
        vec![
            Event::Output(Stream::Stderr, executed.stderr.clone().into()),
            Event::Exited(ending),
        ]
    });
    all.retain(|event| !matches!(event, Event::Output(_, bytes) if bytes.is_empty()));
    for event in all {
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// What CAPTURE tells.
fn captured(text: &str) -> Option<Vec<Event>> {
    let (first, rest) = text.split_once('\n')?;
    let numbers: Vec<usize> = first
        .strip_prefix("sandgate ")?
        .split(' ')
        .flat_map(str::parse)
        .collect();
    let &[code, stdout, stderr] = numbers.as_slice() else {
        return None;
    };
    let (out, err) = rest.split_once(".\n")?;
    let decode = |text: &str| STANDARD.decode(text.replace('\n', "")).ok().map(Bytes::from);
    let mut events = vec![
        Event::Output(Stream::Stdout, decode(out)?),
        Event::Output(Stream::Stderr, decode(err)?),
    ];
    for (name, length) in [("stdout", stdout), ("stderr", stderr)] {
        if let Some(lost) = length.checked_sub(MOST_OUTPUT).filter(|lost| *lost > 0) {
            let note =
                format!("\n[sandgate: the last {lost} bytes of {name} are lost: the python-runtime answers at once]\n");
            events.push(Event::Output(Stream::Stderr, note.into()));
        }
    }
    events.push(Event::Exited(Ending::Code(i32::try_from(code).ok()?)));
    Some(events)
}

/// The arguments as one line that splits into them again.
fn join(args: &[String]) -> String {
    let quoted: Vec<_> = args
        .iter()
        .map(|arg| format!("'{}'", arg.replace('\'', "'\"'\"'")))
        .collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests;
