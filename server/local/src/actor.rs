//! The task that looks after one sandbox: it alone speaks to the monitor, and it alone changes what the table says of
//! the sandbox.

mod attach;
mod start;
mod stop;
mod update;

pub(crate) use self::start::too_many;

use std::{collections::VecDeque, io, sync::Arc, time::Duration};

use sandgate_monitor::{Record, Running};
use sandgate_proto::v1::{EndCause, IncarnationEnd, Sandbox, SandboxState};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task, time,
    time::Instant,
};

use crate::{
    monitor::{End, Monitor},
    ranges::Lease,
    sandbox,
    shared::{Shared, internal},
    slot::{Command, News, Slot},
    started::Started,
    store::{clear, unattended},
    usage::Gauge,
};

/// How long a monitor may take to remove a disk, before its uids are given to others.
const REMOVAL: Duration = Duration::from_secs(600);

/// The task that looks after one sandbox.
#[derive(Debug)]
pub(crate) struct Actor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) inbox: mpsc::Receiver<Command>,
    /// Taken from the inbox while something else was waited for.
    pub(crate) waiting: VecDeque<Command>,
    pub(crate) record: Record,
    /// As callers see it. Mostly the table's own: each has a few kilobytes.
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) started: Option<Started>,
    pub(crate) running: Option<Running>,
    pub(crate) monitor: Option<Monitor>,
    pub(crate) live: Option<OwnedSemaphorePermit>,
    pub(crate) range: Option<Lease>,
    /// When to look for a monitor, if there is none.
    pub(crate) look_again: Instant,
    /// There is nothing left to look after.
    pub(crate) over: bool,
}

/// Where a sandbox comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// It is to be made, and was asked for then.
    New(Instant),
    /// It was on disk when the server started.
    Found,
}

/// Why there is no monitor.
#[derive(Debug)]
enum NoMonitor {
    /// The sandbox is gone.
    Gone,
    Failed(io::Error),
}

// === impl Actor ===

impl Actor {
    /// The task for a sandbox of which nothing is known but what is given.
    pub(crate) fn new(shared: Arc<Shared>, slot: Arc<Slot>, inbox: mpsc::Receiver<Command>, record: Record) -> Self {
        slot.set_gauge(Gauge {
            limits: record.spec.limits.clone(),
            ..Gauge::default()
        });
        Self {
            sandbox: Arc::new(sandbox::fresh(&record)),
            shared,
            slot,
            inbox,
            record,
            waiting: VecDeque::new(),
            started: None,
            running: None,
            monitor: None,
            live: None,
            range: None,
            look_again: Instant::now(),
            over: false,
        }
    }

    /// Looks after the sandbox until it is gone or the server ends.
    pub(crate) async fn run(mut self, origin: Origin) {
        let _counted = self.shared.count();
        // Apart from this future, here and below: what is done now and then is large, and most sandboxes idle.
        match origin {
            Origin::New(asked) => Box::pin(self.be_born(asked)).await,
            Origin::Found => Box::pin(self.be_found()).await,
        }
        let mut closing = self.shared.closing.subscribe();
        while !self.over {
            if let Some(command) = self.waiting.pop_front() {
                Box::pin(self.obey(command)).await;
                continue;
            }
            let closed = async { drop(closing.wait_for(|closing| *closing).await) };
            tokio::select! {
                () = closed => return self.slot.tick(),
                command = self.inbox.recv() => match command {
                    Some(command) => Box::pin(self.obey(command)).await,
                    None => return,
                },
                end = next_end(&mut self.monitor, self.look_again) => match end {
                    Ok(end) => self.ended(end),
                    Err(_) => Box::pin(self.lost_monitor()).await,
                },
            }
        }
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Start { begun } => {
                self.start(begun).await;
                self.slot.tell(News::start_done);
            }
            Command::Suspend {
                incarnation,
                grace,
                answer,
            } => {
                let done = self.suspend(incarnation.as_deref(), grace).await;
                self.slot.tell(News::stop_done);
                let _ = answer.send(done);
            }
            Command::Update { change, answer } => {
                let _ = answer.send(self.update(*change).await);
            }
            Command::Delete { grace, answer } => {
                let done = self.delete(grace).await;
                self.slot.tell(News::delete_done);
                let _ = answer.send(done);
            }
        }
    }

    /// PID 1 has ended.
    fn ended(&mut self, End { end, gone }: End) {
        if gone {
            self.leave(sandbox::cause(end.cause), &end.message);
            return;
        }
        // Word of one that was replaced long ago.
        if self
            .running
            .as_ref()
            .is_some_and(|running| running.incarnation != end.incarnation)
        {
            return;
        }
        let last = sandbox::end(&end);
        tracing::info!(sandbox = %self.slot.name, cause = ?end.cause, message = end.message, "what ran inside has ended");
        self.rest(Some(last));
    }

    /// Nothing runs.
    fn rest(&mut self, last_end: Option<IncarnationEnd>) {
        self.running = None;
        self.slot.set_gauge(Gauge {
            limits: self.record.spec.limits.clone(),
            ..Gauge::default()
        });
        let sandbox = Arc::make_mut(&mut self.sandbox);
        let state = sandbox.state();
        sandbox::suspended(sandbox, last_end);
        if state == SandboxState::Deleting {
            sandbox.set_state(state);
        } else {
            self.live = None;
        }
        self.publish();
    }

    /// What the disk says runs. Its monitor will say whether that is so.
    pub(crate) fn believe(&mut self, running: Option<Running>) {
        if let Some(running) = running {
            self.set_running(running);
        }
    }

    fn set_running(&mut self, running: Running) {
        self.slot.set_gauge(Gauge {
            cgroups: running.cgroups.clone(),
            limits: self.record.spec.limits.clone(),
        });
        self.running = Some(running);
        // Found running after the limit was lowered: it stays, and nobody else may come.
        self.live = self.live.take().or_else(|| self.permit());
    }

    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.live).try_acquire_owned().ok()
    }

    fn show_ready(&mut self) {
        if let Some(started) = &self.started {
            sandbox::ready(Arc::make_mut(&mut self.sandbox), &self.record, started);
        }
        self.publish();
    }

    fn set_state(&mut self, state: SandboxState, message: &str) {
        let sandbox = Arc::make_mut(&mut self.sandbox);
        sandbox.set_state(state);
        sandbox.state_message = message.to_owned();
        self.publish();
    }

    /// Puts it into the table as it is now.
    fn publish(&self) -> Arc<Sandbox> {
        let known = self.shared.table.get(self.slot.name.as_str());
        let now = match known {
            Some(known) if known == self.sandbox => known,
            _ => self.shared.table.put(Arc::clone(&self.sandbox)),
        };
        self.slot.tick();
        now
    }

    /// It is gone: frees its name and ends the task.
    fn leave(&mut self, cause: EndCause, message: &str) {
        self.over = true;
        self.running = None;
        self.live = None;
        self.slot.tell(News::leave);
        let name = self.slot.name.as_str();
        self.shared.table.remove(name, &self.slot.uid, cause, message);
        self.shared.slots().remove(&self.slot);
        self.slot.tell(|news| news.gone = true);
        self.see_off();
    }

    /// Waits aside until the disk is removed. Until then its uids are nobody else's.
    fn see_off(&mut self) {
        let (monitor, range) = (self.monitor.take(), self.range.take());
        let trash = self.shared.store.trash(&self.slot.uid);
        tokio::spawn(async move {
            // Before that, a monitor may not have moved there yet.
            if let Some(monitor) = monitor {
                let _ = time::timeout(REMOVAL, monitor.closed()).await;
            }
            if unattended(&trash, REMOVAL).await {
                let _ = task::spawn_blocking(move || clear(&trash)).await;
            }
            drop(range);
        });
    }

    /// Does something that blocks.
    async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
        task::spawn_blocking(work).await.map_err(io::Error::other)?
    }
}

/// Waits for the next end; without a monitor, until it is time to look for one again.
async fn next_end(monitor: &mut Option<Monitor>, look_again: Instant) -> io::Result<End> {
    match monitor {
        Some(monitor) => monitor.end().await,
        None => {
            time::sleep_until(look_again).await;
            Err(io::ErrorKind::NotConnected.into())
        }
    }
}

/// A refusal for what the machine refused.
fn failed(what: &str, error: &io::Error) -> sandgate_errors::Refusal {
    internal(format!("{what}: {error}"))
}
