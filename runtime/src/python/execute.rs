//! `POST /execute`: a command, and all that came of it in one answer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt as _,
    stream::{once, unfold},
};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use rustix::rand::{GetRandomFlags, getrandom};
use sandgate_exec::{Events, Exec};
use sandgate_proto::runtime::v1::{
    Argv, ExecExit, ExecOffsets, ExecOutput, ExecSpec, FollowFrom, OutputStream, exec_event::Event, exec_exit::Status,
    exec_spec::Command, follow_from::Place,
};
use serde::Deserialize;
use serde_json::json;
use tonic::body::Body;

use super::{detail, text::JsonText, typed, with_json, words};
use crate::{clock::Call, service::Service};

#[derive(Debug, Deserialize)]
struct Request {
    command: String,
    timeout_seconds: Option<f64>,
}

/// One stream of the output, up to the program's end, as text.
struct Output {
    events: Events,
    stream: OutputStream,
    end: u64,
    text: JsonText,
    done: bool,
}

/// The most that a request may have. The kernel takes less of a command.
const MAX_REQUEST: usize = 4 << 20;
/// As in the original.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
const MAX_TIMEOUT: f64 = 24.0 * 60.0 * 60.0;
/// What `timeout` exits with, and what the SDK says of other runtimes.
const TIMED_OUT: i32 = 124;
/// How long the end of a program that was killed is waited for.
const END_OF_KILLED: Duration = Duration::from_secs(10);
/// Whatever kept a command from starting.
const FAILED: i32 = 1;

pub(super) async fn execute(service: &Service, body: Incoming) -> Response<Body> {
    let call = service.call();
    let body = match Limited::new(body, MAX_REQUEST).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return detail(StatusCode::PAYLOAD_TOO_LARGE, "a request has at most 4 MiB");
        }
        Err(error) => return detail(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let request: Request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return detail(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
    };
    let timeout = match request.timeout_seconds {
        None => DEFAULT_TIMEOUT,
        Some(seconds) if seconds > 0.0 && seconds <= MAX_TIMEOUT => Duration::from_secs_f64(seconds),
        Some(_) => {
            let message = "timeout_seconds is more than 0 and at most a day";
            return detail(StatusCode::UNPROCESSABLE_ENTITY, message);
        }
    };
    match run(service, &request.command, timeout).await {
        Ok((exec, exit)) => answer(&exec, &exit, timeout, call),
        Err(why) => failed(&why),
    }
}

/// Runs a command to its end, like any exec of any caller.
async fn run(service: &Service, command: &str, timeout: Duration) -> Result<(Arc<Exec>, ExecExit), String> {
    let args = words::split(command)?;
    let spec = ExecSpec {
        command: Some(Command::Argv(Argv {
            args,
            ..Default::default()
        })),
        timeout: Some(timeout.try_into().unwrap_or_default()),
        // At once, as the original.
        kill_grace: Some(prost_types::Duration::default()),
        ..Default::default()
    };
    let started = service.execs.start(&new_id()?, spec).await;
    let (exec, _) = started.map_err(|refusal| refusal.message)?;
    // What the kernel can't end, it waits for in vain.
    let _ = tokio::time::timeout(timeout + END_OF_KILLED, exec.exited()).await;
    let info = exec.info();
    match (info.exit, info.start_failure) {
        (Some(exit), _) => Ok((exec, exit)),
        (None, Some(failure)) => Err(failure.message),
        (None, None) => Err("it does not end".to_owned()),
    }
}

fn new_id() -> Result<String, String> {
    let mut random = [0; 16];
    getrandom(&mut random, GetRandomFlags::empty()).map_err(|error| error.to_string())?;
    Ok(format!("python-{:032x}", u128::from_ne_bytes(random)))
}

/// The original answers so whatever the reason: existing callers look at nothing else.
fn failed(why: &str) -> Response<Body> {
    let stderr = format!("Failed to execute command: {why}");
    let answer = json!({"stdout": "", "stderr": stderr, "exit_code": FAILED, "timed_out": false});
    with_json(StatusCode::OK, &answer)
}

/// The output may be larger than memory, so the answer is written as it is read.
fn answer(exec: &Arc<Exec>, exit: &ExecExit, timeout: Duration, call: Call) -> Response<Body> {
    let code = match exit.status {
        _ if exit.timed_out => TIMED_OUT,
        Some(Status::Code(code)) => code,
        // As Python tells it.
        Some(Status::Signal(signal)) => -signal,
        _ => FAILED,
    };
    let ends = exit.offsets.unwrap_or_default();
    let said = if exit.timed_out {
        format!("Command timed out after {} seconds\\n", timeout.as_secs_f64())
    } else {
        String::new()
    };
    let last = format!("{said}\",\"exit_code\":{code},\"timed_out\":{}}}", exit.timed_out);
    let pieces = piece("{\"stdout\":\"".to_owned())
        .chain(output(exec, OutputStream::Stdout, ends))
        .chain(piece("\",\"stderr\":\"".to_owned()))
        .chain(output(exec, OutputStream::Stderr, ends))
        .chain(piece(last));
    let frames = pieces.map(move |piece| {
        // A caller that reads is a call under way.
        let _ = &call;
        Ok::<_, tonic::Status>(Frame::data(Bytes::from(piece)))
    });
    typed(StatusCode::OK, "application/json", Body::new(StreamBody::new(frames)))
}

fn piece(text: String) -> impl Stream<Item = String> + Send {
    once(async move { text })
}

fn output(exec: &Arc<Exec>, stream: OutputStream, ends: ExecOffsets) -> impl Stream<Item = String> + Send + use<> {
    let (from, end) = match stream {
        OutputStream::Stderr => (ExecOffsets { stderr: 0, ..ends }, ends.stderr),
        _ => (ExecOffsets { stdout: 0, ..ends }, ends.stdout),
    };
    let from = FollowFrom {
        place: Some(Place::Offsets(from)),
    };
    let output = Output {
        events: Events::new(exec.clone(), Some(&from), false),
        stream,
        end,
        text: JsonText::default(),
        done: false,
    };
    unfold(output, |mut output| async move { Some((output.next().await?, output)) })
}

// === impl Output ===

impl Output {
    async fn next(&mut self) -> Option<String> {
        while !self.done {
            match self.events.next().await.map(|event| event.event) {
                Some(Some(Event::Output(output))) if output.stream() == self.stream => {
                    return Some(self.take(&output));
                }
                Some(Some(Event::Gap(gap))) if gap.stream() == self.stream => {
                    return Some(format!("\\n[{} bytes are no longer kept]\\n", gap.to - gap.from));
                }
                Some(_) => {}
                None => {
                    self.done = true;
                    return Some(self.text.finish().to_owned());
                }
            }
        }
        None
    }

    /// What the program itself wrote. What a process wrote that it left behind is not its.
    fn take(&mut self, output: &ExecOutput) -> String {
        let left = usize::try_from(self.end.saturating_sub(output.offset)).unwrap_or(usize::MAX);
        self.text.push(&output.data[..output.data.len().min(left)])
    }
}
