//! A child that is kept ready for the next command.
//!
//! What a start costs is mostly the same for every program, and can be paid before there is one, when the last command
//! is over and its caller thinks. So where commands follow each other, one child waits for the next (see `Parked`). Where none
//! comes for a while, it goes again. It never waits beside a command that runs: a kernel that is out of memory could choose
//! it, and with it all that share its memory, which is the runtime.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use sandgate_files::User;
use sandgate_proto::runtime::v1::StartFailure;
use sandgate_sys::{Command, Parked, Stdio};
use tokio::task::spawn_blocking;

use crate::{
    children::Awaited,
    launch::{Awaits, Ends, Launched, Launcher, credentials, launched},
    spec::Spec,
    tree::{ExecGroup, Roots},
};

/// A child that waits, and all that its command will have of it.
struct Ready {
    child: Parked,
    awaited: Awaited,
    group: ExecGroup,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
}

/// The one that waits, if any.
#[derive(Default)]
pub(crate) struct Bench(Mutex<Seat>);

#[derive(Default)]
struct Seat {
    ready: Option<Ready>,
    /// Commands that ended since the bench was last looked at.
    commands: u32,
    /// The kernel can't make one.
    is_useless: bool,
}

// === impl Bench ===

impl Bench {
    /// Notes a command that has ended. Answers whether one should be made ready for the next: a second one in a short time
    /// makes a third one likely.
    fn note(&self) -> bool {
        let mut seat = self.seat();
        seat.commands = seat.commands.saturating_add(1);
        seat.commands > 1 && seat.ready.is_none() && !seat.is_useless
    }

    fn take(&self) -> Option<Ready> {
        self.seat().ready.take()
    }

    /// Takes the one that waits for a command that did not come. Called from time to time.
    fn take_unused(&self) -> Option<Ready> {
        let mut seat = self.seat();
        match std::mem::take(&mut seat.commands) {
            0 => seat.ready.take(),
            _ => None,
        }
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ready ===

impl Ready {
    /// Ends it.
    async fn leave(self) {
        // That it ended without having become a program is no news.
        let _ = self.child.leave().finished().await;
        drop(self.awaited);
    }
}

// === impl Launcher ===

impl Launcher {
    /// Makes a child ready for the next command, if one is likely to come. Called when a command has ended, whose group it
    /// can have.
    pub(crate) fn make_ready(&self) {
        if !self.bench.note() {
            return;
        }
        let Some(group) = self.roots.as_ref().and_then(Roots::enter_idle) else {
            return;
        };
        match self.park(group) {
            Ok(ready) => {
                let mut seat = self.bench.seat();
                seat.is_useless = ready.is_none();
                seat.ready = ready;
            }
            // The next command is started as the first one was, and says so if it can't be.
            Err(error) => tracing::debug!(%error, "no child could be made ready"),
        }
    }

    /// Ends the child that is ready, if there is one. Before a program starts that it can't become: while one runs, none waits.
    pub(crate) async fn dismiss(&self) {
        if let Some(ready) = self.bench.take() {
            ready.leave().await;
        }
    }

    /// Lets go of what is kept for commands that do not come. Called from time to time.
    pub(crate) async fn rest(&self) {
        if let Some(unused) = self.bench.take_unused() {
            unused.leave().await;
        }
        if let Some(unused) = self.roots.as_ref().and_then(Roots::take_unused) {
            let _ = spawn_blocking(|| unused.remove()).await;
        }
    }

    /// Whether nothing is kept.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.bench.seat().ready.is_none() && self.roots.as_ref().is_none_or(Roots::is_at_rest)
    }

    fn park(&self, group: ExecGroup) -> io::Result<Option<Ready>> {
        let (stdio, ends) = Ends::pipes(false, false)?;
        let (cgroup, memory_tasks) = group.entrances();
        let blank = Command {
            programs: Vec::new(),
            argv: Vec::new(),
            env: Vec::new(),
            stdio: Stdio::Given(stdio),
            terminal: false,
            cwd: c"/".into(),
            user: None,
            umask: 0,
            limits: Vec::new(),
            cgroup,
            memory_tasks,
            oom_score_adj: None,
            descriptor_3: None,
        };
        let starting = self.children.starting();
        let parked = blank.park().inspect_err(|_| group.spoil());
        let Some(child) = parked.map_err(|error| error.source)? else {
            return Ok(None);
        };
        Ok(Some(Ready {
            awaited: starting.await_child(child.pid()),
            child,
            group,
            stdout: ends.stdout,
            stderr: ends.stderr,
        }))
    }

    /// Starts a program as the child that is ready. `None`: there is none, or it could not be used, and nothing was done.
    pub(crate) async fn launch_ready(
        &self,
        spec: &Spec,
        env: &[(Vec<u8>, Vec<u8>)],
        user: &User,
        home: &str,
        awaits: Awaits,
    ) -> Option<Result<Launched, StartFailure>> {
        if spec.stdin || spec.pty.is_some() {
            return None;
        }
        let stdio = if spec.merged {
            Stdio::ParkedMerged
        } else {
            Stdio::Parked
        };
        let mut command = self.command(spec, self.environment(spec, env, home), stdio).ok()?;
        command.user = credentials(user.clone());
        let Ready {
            child,
            awaited,
            group,
            stdout,
            stderr,
        } = self.bench.take()?;
        let ends = Ends {
            stdin: None,
            stdout,
            stderr: stderr.filter(|_| !spec.merged),
            terminal: None,
        };
        let begun = Instant::now();
        launched(child.go(&command), awaited, group, ends, begun, command, awaits).await
    }
}
