//! Execs and their events as they are printed. JSON follows the rules of [`crate::cli::sandboxes`].

use std::{borrow::Cow, io};

use sandgate::{
    Event, OutputStream,
    v1::{self, exec_exit::Status},
};
use serde::Serialize;

use super::signals;
use crate::cli::{
    output::{self, Cell, Paint, Show, Table, Text},
    sandboxes::{time, word},
    spans,
};

/// An event, one line of JSON.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum EventView<'a> {
    /// `run` only: the sandbox is there.
    Created {
        sandbox: &'a str,
    },
    Started {
        exec_id: &'a str,
        pid: u32,
        started_at: Option<String>,
        incarnation: &'a str,
    },
    Stdout(DataView<'a>),
    Stderr(DataView<'a>),
    Gap {
        stream: &'static str,
        from: u64,
        to: u64,
    },
    Exited(ExitView),
    StartFailed(StartFailureView),
    Ended {
        stdout: u64,
        stderr: u64,
    },
}

/// Bytes: as text if they are UTF-8, else in base64.
#[derive(Debug, Serialize)]
pub(crate) struct DataView<'a> {
    offset: u64,
    text: Option<&'a str>,
    base64: Option<String>,
}

/// How a program ended.
#[derive(Debug, Serialize)]
pub(crate) struct ExitView {
    code: Option<i32>,
    signal: Option<i32>,
    signal_name: Option<String>,
    lost: bool,
    timed_out: bool,
    out_of_memory: u32,
    duration_seconds: Option<f64>,
    user_seconds: Option<f64>,
    system_seconds: Option<f64>,
    max_rss_bytes: u64,
    exited_at: Option<String>,
}

/// Why a program could not be started.
#[derive(Debug, Serialize)]
pub(crate) struct StartFailureView {
    reason: String,
    message: String,
}

/// An exec.
#[derive(Debug, Serialize)]
pub(crate) struct ExecView {
    exec_id: String,
    state: String,
    command: String,
    pid: u32,
    incarnation: String,
    started_at: Option<String>,
    processes_alive: bool,
    output_ended: bool,
    stdout_bytes: u64,
    stderr_bytes: u64,
    stdin_bytes: u64,
    stdin_open: bool,
    exit: Option<ExitView>,
    start_failure: Option<StartFailureView>,
}

/// An exec that was just started: for people, only its id.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct StartedView(ExecView);

/// All execs of a sandbox.
#[derive(Debug, Serialize)]
pub(crate) struct ExecsView {
    execs: Vec<ExecView>,
}

fn seconds(span: Option<&prost_types::Duration>) -> Option<f64> {
    span.map(|span| spans::unwire(span).as_secs_f64())
}

// === impl EventView ===

impl<'a> EventView<'a> {
    /// The view of an event; nothing for one that this version does not know.
    pub(crate) fn new(exec_id: &'a str, event: &'a Event) -> Option<Self> {
        Some(match event {
            Event::Started(started) => Self::Started {
                exec_id,
                pid: started.pid,
                started_at: time(started.started_at.as_ref()),
                incarnation: &started.incarnation,
            },
            Event::StartFailed(failure) => Self::StartFailed(failure.into()),
            Event::Output { stream, offset, data } => {
                let data = DataView::new(*offset, data);
                match stream {
                    OutputStream::Stdout => Self::Stdout(data),
                    OutputStream::Stderr => Self::Stderr(data),
                }
            }
            Event::Gap { stream, from, to } => Self::Gap {
                stream: stream.name(),
                from: *from,
                to: *to,
            },
            Event::Exited(exit) => Self::Exited(exit.into()),
            Event::Ended(total) => Self::Ended {
                stdout: total.stdout,
                stderr: total.stderr,
            },
            _ => return None,
        })
    }

    /// One line, with its end.
    pub(crate) fn line(&self) -> io::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

// === impl DataView ===

impl<'a> DataView<'a> {
    fn new(offset: u64, data: &'a [u8]) -> Self {
        let text = std::str::from_utf8(data).ok();
        Self {
            offset,
            text,
            base64: text.is_none().then(|| output::base64(data)),
        }
    }
}

// === impl ExitView ===

impl From<&v1::ExecExit> for ExitView {
    fn from(exit: &v1::ExecExit) -> Self {
        let (code, signal) = match exit.status {
            Some(Status::Code(code)) => (Some(code), None),
            Some(Status::Signal(signal)) => (None, Some(signal)),
            Some(Status::Lost(_)) | None => (None, None),
        };
        Self {
            code,
            signal,
            signal_name: signal.map(signals::name),
            lost: code.is_none() && signal.is_none(),
            timed_out: exit.timed_out,
            out_of_memory: exit.out_of_memory,
            duration_seconds: seconds(exit.duration.as_ref()),
            user_seconds: seconds(exit.user_time.as_ref()),
            system_seconds: seconds(exit.system_time.as_ref()),
            max_rss_bytes: exit.max_rss,
            exited_at: time(exit.exited_at.as_ref()),
        }
    }
}

impl From<&v1::StartFailure> for StartFailureView {
    fn from(failure: &v1::StartFailure) -> Self {
        Self {
            reason: word(failure.reason().as_str_name(), "REASON_"),
            message: failure.message.clone(),
        }
    }
}

// === impl ExecView ===

impl From<v1::ExecInfo> for ExecView {
    fn from(info: v1::ExecInfo) -> Self {
        let written = info.written.unwrap_or_default();
        Self {
            state: word(info.state().as_str_name(), "EXEC_STATE_"),
            started_at: time(info.started_at.as_ref()),
            exit: info.exit.as_ref().map(ExitView::from),
            start_failure: info.start_failure.as_ref().map(StartFailureView::from),
            exec_id: info.exec_id,
            command: info.command,
            pid: info.pid,
            incarnation: info.incarnation,
            processes_alive: info.processes_alive,
            output_ended: info.output_ended,
            stdout_bytes: written.stdout,
            stderr_bytes: written.stderr,
            stdin_bytes: info.stdin_offset,
            stdin_open: info.stdin_open,
        }
    }
}

impl ExecView {
    fn status(&self) -> Cell {
        let Some(exit) = &self.exit else {
            let paint = if self.start_failure.is_some() {
                Paint::Red
            } else {
                Paint::Green
            };
            return Cell::painted(paint, self.state.replace('_', " "));
        };
        let how: Cow<'_, str> = match (&exit.signal_name, exit.code) {
            _ if exit.timed_out => "timed out".into(),
            (Some(signal), _) => format!("killed by {signal}").into(),
            (None, Some(code)) => format!("exited {code}").into(),
            (None, None) => "lost".into(),
        };
        let left = if self.processes_alive { ", processes left" } else { "" };
        let paint = if exit.code == Some(0) && !exit.timed_out {
            Paint::Dim
        } else {
            Paint::Red
        };
        Cell::painted(paint, format!("{how}{left}"))
    }
}

impl From<v1::ExecInfo> for StartedView {
    fn from(info: v1::ExecInfo) -> Self {
        Self(info.into())
    }
}

impl Show for StartedView {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        to.line(&self.0.exec_id)
    }
}

// === impl ExecsView ===

impl From<Vec<v1::ExecInfo>> for ExecsView {
    fn from(execs: Vec<v1::ExecInfo>) -> Self {
        Self {
            execs: execs.into_iter().map(ExecView::from).collect(),
        }
    }
}

impl Show for ExecsView {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        let mut table = Table::new(&["EXEC", "STATE", "PID", "OUTPUT", "COMMAND"]);
        for exec in &self.execs {
            table.row([
                exec.exec_id.as_str().into(),
                exec.status(),
                exec.pid.to_string().into(),
                output::bytes(exec.stdout_bytes + exec.stderr_bytes).into(),
                exec.command.as_str().into(),
            ]);
        }
        table.print(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(event: &Event) -> serde_json::Value {
        serde_json::from_slice(&EventView::new("e", event).unwrap().line().unwrap()).unwrap()
    }

    #[test]
    fn events_are_lines_with_stable_fields() {
        let output = |data: &'static [u8]| Event::Output {
            stream: OutputStream::Stderr,
            offset: 4,
            data: bytes::Bytes::from_static(data),
        };
        assert_eq!(
            json(&output(b"hi\n")),
            serde_json::json!({"event": "stderr", "offset": 4, "text": "hi\n", "base64": null})
        );
        assert_eq!(
            json(&output(b"\xff")),
            serde_json::json!({"event": "stderr", "offset": 4, "text": null, "base64": "/w=="})
        );
        let exited = json(&Event::Exited(v1::ExecExit {
            status: Some(Status::Signal(15)),
            ..Default::default()
        }));
        assert_eq!(
            (&exited["event"], &exited["code"]),
            (&"exited".into(), &serde_json::Value::Null)
        );
        assert_eq!(
            (&exited["signal"], &exited["signal_name"]),
            (&15.into(), &"TERM".into())
        );
        assert_eq!(exited["lost"], false);
        let failed = json(&Event::StartFailed(v1::StartFailure {
            reason: v1::start_failure::Reason::NotFound.into(),
            message: "no".into(),
        }));
        assert_eq!(
            failed,
            serde_json::json!({"event": "start_failed", "reason": "not_found", "message": "no"})
        );
    }
}
