//! Getting hold of a sandbox's monitor, and believing what it says.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use sandgate_monitor::{layout, now_ms};
use sandgate_proto::v1::EndCause;
use tokio::time::{self, Instant};

use super::{Actor, NoMonitor};
use crate::{monitor::Monitor, sandbox, slot::News, store::is_attended};

/// Between attempts to get a monitor for a sandbox that has none.
const WITHOUT_MONITOR: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(10);

// === impl Actor ===

impl Actor {
    /// Finds its monitor again after a restart of the server.
    pub(super) async fn be_found(&mut self) {
        match self.attach().await {
            Ok(()) => {
                self.take_status().await;
                self.slot.tell(News::heard);
                self.finish_ending().await;
            }
            Err(problem) => {
                self.without_monitor(problem);
                self.slot.tell(News::heard);
            }
        }
    }

    /// Its monitor has ended without a word.
    pub(super) async fn lost_monitor(&mut self) {
        self.monitor = None;
        match self.attach().await {
            Ok(()) => self.take_status().await,
            Err(problem) => self.without_monitor(problem),
        }
    }

    /// Gets hold of the monitor: the one that is there, or a new one.
    pub(super) async fn attach(&mut self) -> Result<(), NoMonitor> {
        let dir = self.slot.place.get();
        let mut pause = FIRST_PAUSE;
        let mut attempt = 0;
        loop {
            let failed = match self.find_or_start(&dir).await {
                Ok(monitor) => {
                    self.monitor = Some(monitor);
                    return Ok(());
                }
                Err(error) => error,
            };
            let there = dir.join(layout::RECORD).exists();
            attempt += 1;
            match (there, attempt) {
                (false, _) => return Err(NoMonitor::Gone),
                (true, ATTEMPTS..) => return Err(NoMonitor::Failed(failed)),
                // Another one may just be starting, or ending.
                _ => time::sleep(pause).await,
            }
            pause *= 2;
        }
    }

    async fn find_or_start(&self, dir: &Path) -> io::Result<Monitor> {
        match Monitor::find(dir).await {
            Err(_) if dir.join(layout::RECORD).exists() => {
                let _one_of_few = self.shared.restarts.acquire().await;
                let program = &self.shared.settings.monitor_bin;
                Monitor::launch(&self.shared.spawner, program, dir, false)?.met().await
            }
            found => found,
        }
    }

    /// Takes over what a monitor said of the sandbox.
    async fn take_status(&mut self) {
        let Some(monitor) = &self.monitor else {
            return;
        };
        let (status, fresh) = (monitor.status.clone(), monitor.fresh);
        let boot = &self.shared.boot_id;
        match status.running {
            Some(running) if !fresh && running.boot_id == *boot => {
                if self.started.as_ref().is_some_and(|started| started.is_of(&running)) {
                    self.set_running(running);
                    self.show_ready();
                } else {
                    // It is on its way, and whoever wants it ready can wait for that.
                    sandbox::found_starting(Arc::make_mut(&mut self.sandbox));
                    self.publish();
                    self.slot.tell(News::heard);
                    self.finish_start(running).await;
                }
            }
            running => {
                let untold = running.map(|running| sandbox::untold_end(&running, boot, now_ms()));
                let last = untold.or(status.last_end);
                let last = last.map(|ended| sandbox::end(&ended));
                self.rest(last);
            }
        }
    }

    fn without_monitor(&mut self, problem: NoMonitor) {
        match problem {
            NoMonitor::Gone => self.vanished(),
            NoMonitor::Failed(_) if self.overdue() && self.move_out() => self.vanished(),
            NoMonitor::Failed(error) => {
                tracing::error!(sandbox = %self.slot.name, %error, "its monitor can't be started");
                self.look_again = Instant::now() + WITHOUT_MONITOR;
                let last = self.running.take().map(|running| {
                    let ended = sandbox::untold_end(&running, &self.shared.boot_id, now_ms());
                    sandbox::end(&ended)
                });
                self.rest(last);
                Arc::make_mut(&mut self.sandbox).state_message = format!("its monitor can't be started: {error}");
                self.publish();
            }
        }
    }

    /// It is no longer on disk, and nobody said why.
    pub(super) fn vanished(&mut self) {
        let (cause, message) = if self.overdue() {
            (EndCause::Deadline, "its deadline was reached")
        } else {
            (EndCause::Unspecified, "its directory is gone")
        };
        self.leave(cause, message);
    }

    fn overdue(&self) -> bool {
        self.record.deadline_ms.is_some_and(|deadline| deadline <= now_ms())
    }

    /// Does a monitor's last duty, where there can't be one: without it nothing runs. Tells whether the name is free.
    fn move_out(&self) -> bool {
        let (dir, trash) = (self.slot.place.get(), self.shared.store.trash(&self.slot.uid));
        !is_attended(&dir) && fs::rename(dir, trash).is_ok()
    }
}
