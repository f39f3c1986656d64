//! A command to run, said in steps.

use std::time::Duration;

use crate::{
    ids::new_id,
    v1::{self, exec_spec, follow_from},
};

/// A command to run. It has an id from the start, so that no clone of it ever runs twice in one sandbox.
#[derive(Clone, Debug)]
#[must_use]
pub struct Command {
    pub(crate) id: String,
    pub(crate) spec: v1::ExecSpec,
    pub(crate) from: v1::ExecOffsets,
}

// === impl Command ===

impl Command {
    /// A program and its arguments.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        let args = argv.into_iter().map(Into::into).collect();
        Self::of(exec_spec::Command::Argv(v1::Argv {
            args,
            args_raw: Vec::new(),
        }))
    }

    /// A script for `/bin/sh -c`.
    pub fn shell(script: impl Into<String>) -> Self {
        Self::of(exec_spec::Command::Shell(script.into()))
    }

    /// All that the contract knows of a command.
    pub fn from_spec(spec: v1::ExecSpec) -> Self {
        Self {
            id: new_id(),
            spec,
            from: v1::ExecOffsets::default(),
        }
    }

    fn of(command: exec_spec::Command) -> Self {
        Self::from_spec(v1::ExecSpec {
            command: Some(command),
            ..Default::default()
        })
    }

    /// Its id, `[A-Za-z0-9_-]{1,64}`, instead of a made-up one. If that was started before with the same command, it is
    /// found and not run again.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// If it was started before: leave out the bytes before these offsets.
    pub fn from(mut self, seen: v1::ExecOffsets) -> Self {
        self.from = seen;
        self
    }

    /// Adds an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.spec.env.push(v1::EnvVar {
            name: name.into(),
            value: value.into(),
            value_raw: bytes::Bytes::new(),
        });
        self
    }

    /// Its working directory, absolute.
    pub fn cwd(mut self, cwd: impl Into<String>) -> Self {
        self.spec.cwd = cwd.into();
        self
    }

    /// The user it runs as, by name or number.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.spec.user = user.into();
        self
    }

    /// Ends it, with all its processes, after this long.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeout = Some(wire(timeout));
        self
    }

    /// Leaves stdin open, to be written by [`Exec::stdin`](crate::Exec::stdin). Otherwise it is at its end.
    pub fn stdin(mut self) -> Self {
        self.spec.stdin = v1::StdinMode::Open.into();
        self
    }

    /// One stream for both, in exact order.
    pub fn merge_stderr(mut self) -> Self {
        self.spec.stderr = v1::StderrMode::Merged.into();
        self
    }

    /// Lets it wait for its followers instead of dropping the oldest output when more is retained than there is room
    /// for. With no follower the oldest is dropped all the same.
    pub fn hold_when_full(mut self) -> Self {
        self.spec.on_full = v1::OnFull::Hold.into();
        self
    }

    /// Runs it on a terminal of that size.
    pub fn pty(mut self, columns: u16, rows: u16, term: impl Into<String>) -> Self {
        self.spec.pty = Some(v1::Pty {
            size: Some(v1::PtySize {
                columns: columns.into(),
                rows: rows.into(),
            }),
            term: term.into(),
        });
        self
    }

    pub(crate) fn has_stdin(&self) -> bool {
        self.spec.stdin() == v1::StdinMode::Open || self.spec.pty.is_some()
    }
}

/// A place to follow from.
pub(crate) fn at(offsets: v1::ExecOffsets) -> v1::FollowFrom {
    v1::FollowFrom {
        place: Some(follow_from::Place::Offsets(offsets)),
    }
}

/// A span as it is sent. One that is too long for the wire is too long for every server, which says so.
pub(crate) fn wire(span: Duration) -> prost_types::Duration {
    span.try_into().unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}
