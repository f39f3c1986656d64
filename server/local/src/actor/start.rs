//! Making a sandbox, and bringing one back.

use std::{fs, path::Path, sync::Arc};

use sandgate_errors::Refusal;
use sandgate_monitor::{
    IsolationLevel, Record, Running, Step, Variable,
    control::{Failure, Request, Said},
    layout,
};
use sandgate_proto::{
    runtime::v1::EnvVar,
    v1::{EndCause, ErrorReason, SandboxState},
};
use sandgate_provider::inside;
use tokio::{sync::oneshot, time::Instant};

use super::{Actor, NoMonitor, failed};
use crate::{
    monitor::Monitor,
    shared::{RETRY_AFTER, internal},
    started::{Started, step},
};

/// How much of a log is shown for what could not start.
const LOG_SHOWN: usize = 400;

/// How a start came about.
#[derive(Debug)]
struct Beginning {
    asked: Instant,
    resumed: bool,
    steps: Vec<Step>,
}

// === impl Actor ===

impl Actor {
    /// Makes the sandbox, or removes every trace of the attempt.
    pub(super) async fn be_born(&mut self, asked: Instant) {
        match self.birth(asked).await {
            Ok(()) => {
                self.show_ready();
                tracing::info!(
                    sandbox = %self.slot.name, uid = self.slot.uid, template = self.slot.template,
                    took = ?asked.elapsed(), "made"
                );
            }
            Err(refusal) => {
                tracing::warn!(sandbox = %self.slot.name, uid = self.slot.uid, %refusal, "could not be made");
                self.slot.set_refusal(Some(refusal.clone()));
                self.unmake().await;
                self.leave(EndCause::Unspecified, &refusal.message);
            }
        }
    }

    async fn birth(&mut self, asked: Instant) -> Result<(), Refusal> {
        let (shared, record) = (Arc::clone(&self.shared), self.record.clone());
        let began = Instant::now();
        // Its monitor starts right behind it, without a turn of ours between the two.
        let made = Self::blocking(move || {
            let dir = shared.store.make(&record)?;
            let recorded = Instant::now();
            let launch = Monitor::launch(&shared.spawner, &shared.settings.monitor_bin, &dir, true);
            Ok((dir, recorded, launch))
        });
        let (dir, recorded, launch) = made
            .await
            .map_err(|error| failed("the sandbox's directory can't be made", &error))?;
        let monitor = match launch {
            Ok(launch) => launch.met().await,
            Err(error) => Err(error),
        };
        self.monitor = Some(monitor.map_err(|error| {
            let program = self.shared.settings.monitor_bin.display();
            failed(&format!("{program} can't be started{}", log_end(&dir)), &error)
        })?);
        let beginning = Beginning {
            asked,
            resumed: false,
            steps: vec![step("record", recorded - began), step("monitor", recorded.elapsed())],
        };
        // Plain processes see the directory by its path: it has to be where it stays before they start.
        if self.record.spec.isolation == IsolationLevel::None {
            self.commit().await?;
            return self.boot(beginning).await;
        }
        self.boot(beginning).await?;
        self.commit().await
    }

    async fn commit(&mut self) -> Result<(), Refusal> {
        match self.ask(&Request::Commit).await? {
            Said::Done => {
                self.slot.place.set(self.shared.store.sandbox(&self.slot.name));
                Ok(())
            }
            other => Err(refused(other)),
        }
    }

    /// Removes what a failed birth left.
    async fn unmake(&mut self) {
        if let Some(monitor) = &mut self.monitor
            && let Err(error) = monitor.ask(&Request::Remove).await
        {
            tracing::debug!(uid = self.slot.uid, %error, "a monitor ended before it was told to");
        }
        let (store, uid) = (self.shared.store.clone(), self.slot.uid.clone());
        // It may have been moved there just before its monitor was killed.
        let moved = store.sandbox(&self.slot.name);
        let removed = Self::blocking(move || {
            if Record::read(&moved).is_ok_and(|record| record.uid == uid) {
                store.discard(&moved, &uid)?;
            }
            store.discard(&store.unfinished(&uid), &uid)
        })
        .await;
        if let Err(error) = removed {
            tracing::warn!(uid = self.slot.uid, %error, "what is left of a sandbox can't be removed");
        }
    }

    /// Brings it back, if it does not run.
    pub(super) async fn start(&mut self, begun: oneshot::Sender<()>) {
        if self.running.is_some() {
            return;
        }
        self.slot.set_refusal(None);
        self.set_state(SandboxState::Resuming, "");
        let _ = begun.send(());
        let asked = Instant::now();
        match self.resume(asked).await {
            Ok(()) => {
                self.show_ready();
                tracing::info!(sandbox = %self.slot.name, took = ?asked.elapsed(), "resumed");
            }
            Err(_) if self.over => {}
            Err(refusal) => {
                tracing::warn!(sandbox = %self.slot.name, %refusal, "could not be resumed");
                let message = refusal.message.clone();
                self.slot.set_refusal(Some(refusal));
                self.rest(None);
                self.set_state(SandboxState::Suspended, &message);
            }
        }
    }

    async fn resume(&mut self, asked: Instant) -> Result<(), Refusal> {
        self.live = self.live.take().or_else(|| self.permit());
        if self.live.is_none() {
            return Err(too_many(self.shared.settings.limits.sandboxes));
        }
        if self.monitor.is_none() {
            self.reattach().await?;
        }
        let beginning = || Beginning {
            asked,
            resumed: true,
            steps: Vec::new(),
        };
        match self.boot(beginning()).await {
            // It was dead, and nobody had noticed.
            Err(_) if self.monitor.is_none() && !self.over => {
                self.reattach().await?;
                self.boot(beginning()).await
            }
            done => done,
        }
    }

    async fn reattach(&mut self) -> Result<(), Refusal> {
        match self.attach().await {
            Ok(()) => Ok(()),
            Err(NoMonitor::Failed(error)) => Err(failed("its monitor can't be started", &error)),
            Err(NoMonitor::Gone) => {
                self.vanished();
                Err(crate::shared::not_found(&self.slot.name))
            }
        }
    }

    /// A start that another server began: nobody knows how far it came.
    pub(super) async fn finish_start(&mut self, running: Running) {
        let beginning = Beginning {
            asked: Instant::now(),
            resumed: true,
            steps: running.steps.clone(),
        };
        match self.welcome(running, beginning).await {
            Ok(()) => self.show_ready(),
            Err(_) if self.over => {}
            Err(refusal) => {
                tracing::warn!(sandbox = %self.slot.name, %refusal, "runs and can't be reached: ended");
                let _ = self.ask(&Request::Kill).await;
                self.rest(None);
                self.set_state(SandboxState::Suspended, &refusal.message);
            }
        }
    }

    async fn boot(&mut self, mut beginning: Beginning) -> Result<(), Refusal> {
        match self.ask(&Request::Start(self.shared.boot())).await? {
            Said::Started(running) => {
                beginning.steps.extend(running.steps.iter().cloned());
                self.welcome(running, beginning).await
            }
            other => Err(refused(other)),
        }
    }

    /// Gives what runs inside its environment, learns who it is, and notes it.
    async fn welcome(&mut self, running: Running, mut beginning: Beginning) -> Result<(), Refusal> {
        let link = self.slot.renew_link();
        let began = Instant::now();
        let Some(monitor) = &mut self.monitor else {
            return Err(internal("its monitor has ended"));
        };
        self.running = Some(running.clone());
        let env: Vec<_> = self.record.env.iter().map(env_var).collect();
        let hello = tokio::select! {
            hello = inside::greet(&link, &env) => hello,
            end = monitor.end() => {
                let dir = self.slot.place.get();
                let why = match end {
                    Ok(end) => {
                        let why = end.end.message.clone();
                        self.ended_at_birth(end);
                        why
                    }
                    Err(error) => {
                        self.monitor = None;
                        error.to_string()
                    }
                };
                return Err(internal(format!("what runs inside ended at once: {why}{}", log_end(&dir))));
            }
        };
        let hello =
            hello.map_err(|status| internal(format!("what runs inside can't be reached: {}", status.message())))?;
        if hello.incarnation != running.incarnation {
            return Err(internal("something else than what was started answers from inside"));
        }
        beginning.steps.push(step("connect", began.elapsed()));
        let started = Started {
            incarnation: hello.incarnation,
            version: hello.version,
            capabilities: hello.capabilities,
            isolation: running.isolation.clone(),
            total_micros: step("", beginning.asked.elapsed()).micros,
            steps: beginning.steps,
            resumed: beginning.resumed,
            ending_ms: None,
        };
        self.started = Some(started.clone());
        let dir = self.slot.place.get();
        let noted = Self::blocking(move || started.write(&dir)).await;
        noted.map_err(|error| failed("its start can't be noted", &error))?;
        self.set_running(running);
        Ok(())
    }

    /// Like any other end, but that one which never was READY is not to be seen SUSPENDED meanwhile.
    fn ended_at_birth(&mut self, end: crate::monitor::End) {
        if self.sandbox.state() == SandboxState::Creating {
            self.running = None;
        } else {
            self.ended(end);
        }
    }

    /// Asks the monitor. After an error there is none.
    pub(super) async fn ask(&mut self, request: &Request) -> Result<Said, Refusal> {
        let Some(monitor) = &mut self.monitor else {
            return Err(internal("its monitor has ended"));
        };
        match monitor.ask(request).await {
            Ok(said) => Ok(said),
            Err(error) => {
                self.monitor = None;
                self.look_again = Instant::now();
                let log = log_end(&self.slot.place.get());
                Err(failed(&format!("its monitor can't be asked{log}"), &error))
            }
        }
    }
}

pub(crate) fn too_many(most: usize) -> Refusal {
    let message =
        format!("{most} sandboxes are running, which is the server's limits.sandboxes; suspend or delete one");
    Refusal::new(ErrorReason::LimitReached, message)
        .with("limit", most)
        .with_retry_after(RETRY_AFTER)
}

/// What the monitor's answer means, when it is not the one that was hoped for.
pub(super) fn refused(said: Said) -> Refusal {
    match said {
        Said::Failed(Failure {
            mechanism: Some(mechanism),
            message,
        }) => Refusal::new(ErrorReason::IsolationUnavailable, message).with("mechanism", mechanism),
        Said::Failed(failure) => internal(failure.message),
        other => internal(format!("the monitor answered something else: {other:?}")),
    }
}

/// The end of a sandbox's log, for a person.
fn log_end(dir: &Path) -> String {
    let log = fs::read(dir.join(layout::LOG)).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let text = text.trim();
    let end = &text[text.ceil_char_boundary(text.len().saturating_sub(LOG_SHOWN))..];
    if end.is_empty() {
        String::new()
    } else {
        format!(" (its log: {end})")
    }
}

fn env_var(variable: &Variable) -> EnvVar {
    EnvVar {
        name: variable.name.clone(),
        value: variable.value.clone(),
        value_raw: variable.raw.clone().into(),
    }
}
