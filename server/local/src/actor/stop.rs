//! Suspending and deleting.

use std::{sync::Arc, time::Duration};

use sandgate_errors::Refusal;
use sandgate_monitor::{
    control::{Removal, Request, Said},
    now_ms,
};
use sandgate_proto::v1::{EndCause, ErrorReason, Sandbox, SandboxState};
use sandgate_provider::{Removed, inside, limits::millis};
use tokio::time::{self, Instant};

use super::{Actor, NoMonitor, failed, start::refused};
use crate::{
    shared::{internal, not_found},
    slot::Command,
};

/// Beyond the grace time, until everything is ended and put on disk.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long a monitor may take to free a name.
const REMOVAL: Duration = Duration::from_secs(120);

// === impl Actor ===

impl Actor {
    pub(super) async fn suspend(&mut self, expected: Option<&str>, grace: Duration) -> Result<Arc<Sandbox>, Refusal> {
        self.check_incarnation(expected)?;
        if self.running.is_some() {
            self.set_state(SandboxState::Suspending, "");
            self.end_processes(Some(grace)).await;
        }
        if self.over {
            return Err(not_found(&self.slot.name));
        }
        if self.running.is_some() {
            self.go_on().await;
            return Err(internal("its processes can't be ended"));
        }
        self.slot.set_refusal(None);
        Ok(self.publish())
    }

    /// Ends what another server had told to end. Nobody knows whether the runtime has heard of it.
    pub(super) async fn finish_ending(&mut self) {
        let ending = self.started.as_ref().and_then(|started| started.ending_ms);
        let (Some(ending_ms), Some(_)) = (ending, &self.running) else {
            return;
        };
        let grace = Duration::from_millis(ending_ms.saturating_sub(now_ms()));
        self.end_processes(Some(grace)).await;
        if self.running.is_some() && !self.over {
            self.go_on().await;
        }
    }

    /// It could not be ended, and is as it was.
    async fn go_on(&mut self) {
        self.note_ending(None).await;
        self.set_state(SandboxState::Ready, "");
    }

    /// Notes beside the sandbox that it ends: a server that takes over would call it READY otherwise.
    async fn note_ending(&mut self, ending_ms: Option<u64>) {
        let Some(started) = &mut self.started else {
            return;
        };
        started.ending_ms = ending_ms;
        let (started, dir) = (started.clone(), self.slot.place.get());
        if let Err(error) = Self::blocking(move || started.write(&dir)).await {
            tracing::warn!(sandbox = %self.slot.name, %error, "can't note that it ends");
        }
    }

    /// One that has ended is as good as the current one, if nothing was started since: the call is only repeated.
    fn check_incarnation(&self, expected: Option<&str>) -> Result<(), Refusal> {
        let current = if self.running.is_some() {
            &self.sandbox.incarnation
        } else {
            self.sandbox
                .last_end
                .as_ref()
                .map_or(&self.sandbox.incarnation, |end| &end.incarnation)
        };
        match expected {
            Some(expected) if expected != current => {
                let message = "the sandbox was restarted since; the one that runs now was left alone";
                Err(Refusal::new(ErrorReason::SandboxRestarted, message).with("incarnation", expected))
            }
            _ => Ok(()),
        }
    }

    /// Ends every process: kindly, and by force if that does not help.
    async fn end_processes(&mut self, grace: Option<Duration>) {
        let ending_ms = now_ms().saturating_add(millis(grace.unwrap_or_default()));
        self.note_ending(Some(ending_ms)).await;
        if inside::stop(&self.slot.link(), grace).await.is_err() {
            let _ = self.ask(&Request::Kill).await;
        }
        self.wait_for_end(grace.unwrap_or_default()).await;
        if self.running.is_some() && !self.over {
            tracing::warn!(sandbox = %self.slot.name, "did not end when told to: killed");
            let _ = self.ask(&Request::Kill).await;
            self.wait_for_end(Duration::ZERO).await;
        }
    }

    async fn wait_for_end(&mut self, grace: Duration) {
        let mut until = Instant::now() + grace + PATIENCE;
        while self.running.is_some() && !self.over {
            let Some(monitor) = &mut self.monitor else {
                self.lost_monitor().await;
                return;
            };
            tokio::select! {
                end = monitor.end() => match end {
                    Ok(end) => self.ended(end),
                    Err(_) => self.lost_monitor().await,
                },
                Some(command) = self.inbox.recv() => {
                    until = until.min(self.hasten(&command).await);
                    self.waiting.push_back(command);
                }
                () = time::sleep_until(until) => return,
            }
        }
    }

    /// Somebody who comes later may have less patience: tells the runtime, and answers until when to wait.
    async fn hasten(&mut self, command: &Command) -> Instant {
        let grace = match command {
            Command::Suspend { grace, .. } => Some(*grace),
            Command::Delete { grace, .. } => *grace,
            Command::Start { .. } | Command::Update { .. } => return Instant::now() + Duration::from_secs(86_400),
        };
        // Of two grace times the runtime takes the one that is over first.
        let _ = inside::stop(&self.slot.link(), grace).await;
        Instant::now() + grace.unwrap_or_default() + PATIENCE
    }

    pub(super) async fn delete(&mut self, grace: Option<Duration>) -> Result<Removed, Refusal> {
        let mut removed = Removed {
            existed: true,
            uid: self.slot.uid.clone(),
            incarnation: self.last_incarnation(),
            ..Removed::default()
        };
        self.set_state(SandboxState::Deleting, "");
        if self.running.is_some() {
            removed.execs_ended = inside::alive_execs(&self.slot.link()).await;
            if grace.is_some() {
                self.end_processes(grace).await;
            }
        }
        // Its deadline may have come first, which is as well.
        if self.over {
            return Ok(removed);
        }
        match self.remove().await {
            Ok(removal) => {
                removed.disk_bytes = removal.disk_bytes;
                self.leave(EndCause::Deleted, "it was deleted");
                tracing::info!(sandbox = %self.slot.name, uid = self.slot.uid, "deleted");
                Ok(removed)
            }
            Err(refusal) => {
                tracing::error!(sandbox = %self.slot.name, %refusal, "could not be deleted");
                if self.running.is_some() {
                    self.set_state(SandboxState::Ready, &refusal.message);
                } else {
                    self.live = None;
                    self.set_state(SandboxState::Suspended, &refusal.message);
                }
                Err(refusal)
            }
        }
    }

    fn last_incarnation(&self) -> String {
        let last = self.sandbox.last_end.as_ref().map(|end| &end.incarnation);
        match (self.sandbox.incarnation.as_str(), last) {
            ("", Some(last)) => last.clone(),
            (current, _) => current.to_owned(),
        }
    }

    async fn remove(&mut self) -> Result<Removal, Refusal> {
        let mut retried = false;
        loop {
            if self.monitor.is_none() {
                match self.attach().await {
                    Ok(()) => {}
                    Err(NoMonitor::Gone) => return Ok(Removal::default()),
                    Err(NoMonitor::Failed(error)) => return Err(failed("its monitor can't be started", &error)),
                }
            }
            let Some(monitor) = &mut self.monitor else {
                continue;
            };
            match monitor.ask_within(REMOVAL, &Request::Remove).await {
                Ok(Said::Removed(removal)) => return Ok(removal),
                Ok(other) => return Err(refused(other)),
                Err(error) if retried => return Err(failed("its monitor can't be asked", &error)),
                Err(_) => {
                    self.monitor = None;
                    retried = true;
                }
            }
        }
    }
}
