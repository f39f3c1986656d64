//! Greeting what runs in a pod: learning who it is, telling it what it must know, writing that down for all servers.

use std::{sync::Arc, time::Duration};

use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{EnvVar, HelloResponse},
    v1::{ColdReason, ErrorReason},
};
use sandgate_provider::inside;
use serde_json::json;
use tonic::Status;

use crate::{
    api::{Claim, is_warm},
    birth::Asked,
    lease,
    lifecycle::lifecycle,
    memo::{Ended, Kind, Memo, Mode, PoolMemo, Started},
    reach::{PodStart, Reach},
    seal,
    shared::{NotChanged, Shared},
    view::now_ms,
    world::Key,
};

/// Why a greeting failed.
#[derive(Debug)]
pub(crate) enum NotGreeted {
    /// Nothing answers yet, or no longer.
    Unreachable(String),
    /// It never will.
    Never(String),
}

/// Who answered, and how it came about.
#[derive(Debug)]
struct Greeted {
    hello: HelloResponse,
    start: PodStart,
    steps: Vec<(String, u64)>,
    took: Duration,
    /// The pool that it was to come from, as it was then.
    pool: Option<PoolMemo>,
}

// === impl Shared ===

impl Shared {
    /// Learns who runs inside, tells it what it must know, and writes it down for all servers.
    pub(crate) async fn greet(self: &Arc<Self>, key: &Key, uid: &str, asked: Option<&Asked>) -> Result<(), NotGreeted> {
        let gone = || NotGreeted::Unreachable("its pod is gone".to_owned());
        let reach = self.reach(key).ok_or_else(gone)?;
        let hello = inside::hello(&reach.link).await.map_err(NotGreeted::of)?;
        reach.know(&hello.incarnation);
        let memo = self.world.look(key, |_, entry| entry.memo.clone()).ok_or_else(gone)?;
        // What others need is told to them with each command, by each server.
        if reach.keeps_limits() {
            let env = self
                .env(key, &memo)
                .map_err(|refusal| NotGreeted::Never(refusal.message))?;
            let (deadline, idle) = (memo.deadline_ms, memo.idle_ms);
            inside::configure(&reach.link, &hello.incarnation, env, deadline, idle, now_ms())
                .await
                .map_err(NotGreeted::of)?;
        }
        let greeted = Greeted::now(hello, &reach, asked);
        let is_maker = asked.is_some_and(Asked::is_maker);
        if is_maker {
            // Whoever asked for it need not wait until it is written down. Should that never be, the claim ends soon.
            self.world
                .note_start(key, uid, |claim, memo| greeted.started(claim, memo));
        }
        let limits = self.write_down(key, uid, is_maker, &greeted, &memo).await?;
        // They were changed meanwhile, by whoever could not tell what was not greeted yet.
        if limits != (memo.deadline_ms, memo.idle_ms) && reach.keeps_limits() {
            let told = inside::set_limits(&reach.link, limits.0, limits.1, now_ms()).await;
            told.map_err(NotGreeted::of)?;
        }
        tracing::info!(sandbox = %key, incarnation = greeted.hello.incarnation, took = ?greeted.took, "ready");
        Ok(())
    }

    /// Gives the limits, as they are written there now.
    async fn write_down(
        &self,
        key: &Key,
        uid: &str,
        is_maker: bool,
        greeted: &Greeted,
        memo: &Memo,
    ) -> Result<(Option<u64>, Option<u64>), NotGreeted> {
        let mut limits = (memo.deadline_ms, memo.idle_ms);
        let revised = self.revise_as(is_maker, key, uid, |claim, memo| {
            limits = (memo.deadline_ms, memo.idle_ms);
            let is_done = memo.started.as_ref().is_some_and(|started| greeted.is(started));
            if memo.mode == Mode::Suspended || (is_done && memo.mode == Mode::Running) {
                return Ok(None);
            }
            let is_too_late = lease::is_too_late(claim, memo, now_ms());
            if !is_done {
                memo.last_end = self.last_end(key).or(memo.last_end.take());
                memo.started = Some(greeted.started(claim, memo));
            }
            memo.mode = Mode::Running;
            let mut lifecycle = lifecycle(memo);
            if let Some(fields) = lifecycle.as_object_mut().filter(|_| is_too_late) {
                fields.remove("shutdownTime");
            }
            Ok(Some(json!({"spec": {"lifecycle": lifecycle}})))
        });
        match revised.await {
            Ok(()) => Ok(limits),
            Err(NotChanged::Gone) => Err(NotGreeted::Unreachable("its claim is gone".to_owned())),
            Err(NotChanged::Refused(refusal)) => {
                tracing::warn!(sandbox = %key, %refusal, "that it is ready can't be written down");
                Err(NotGreeted::Unreachable(refusal.message))
            }
        }
    }

    /// How the incarnation before ended, as this server saw it.
    fn last_end(&self, key: &Key) -> Option<Ended> {
        let sandbox = self.table().get(&key.name)?;
        let end = sandbox.last_end.as_ref()?;
        let at = end.ended_at.map_or(0, |at| {
            at.seconds.unsigned_abs() * 1000 + u64::from(at.nanos.unsigned_abs()) / 1_000_000
        });
        Some(Ended {
            incarnation: end.incarnation.clone(),
            cause: end.cause,
            message: end.message.clone(),
            at_ms: at,
        })
    }

    /// The environment that was given to a sandbox, unless its pod has it.
    pub(crate) fn env_of(&self, key: &Key) -> Result<Vec<EnvVar>, Refusal> {
        let memo = self.world.look(key, |_, entry| entry.memo.clone());
        memo.map_or(Ok(Vec::new()), |memo| self.env(key, &memo))
    }

    fn env(&self, key: &Key, memo: &Memo) -> Result<Vec<EnvVar>, Refusal> {
        let Some(sealed) = &memo.env else {
            return Ok(Vec::new());
        };
        let Some(signer) = &self.signer else {
            let message = "its environment can't be opened: the server has no keys";
            return Err(Refusal::new(ErrorReason::SandboxFailed, message));
        };
        seal::open(sealed, &Self::place(key), signer.keyring().secrets())
    }
}

// === impl Greeted ===

impl Greeted {
    fn now(hello: HelloResponse, reach: &Reach, asked: Option<&Asked>) -> Self {
        Self {
            hello,
            start: reach.start.clone(),
            steps: asked.map(Asked::steps).unwrap_or_default(),
            took: asked.map_or(Duration::ZERO, Asked::elapsed),
            pool: asked.and_then(|asked| asked.pool.clone()),
        }
    }

    /// Whether it is that start.
    fn is(&self, started: &Started) -> bool {
        started.incarnation == self.hello.incarnation && self.start.is_of(started)
    }

    /// What is to be remembered of it.
    fn started(&self, claim: &Claim, memo: &Memo) -> Started {
        let unspecified = ColdReason::Unspecified;
        let (kind, cold_reason, message) = if memo.mode == Mode::Waking {
            (Kind::Resumed, unspecified, "started again from its kept volumes")
        } else if memo.started.is_some() {
            (
                Kind::Replaced,
                unspecified,
                "the cluster replaced its pod; files outside of volumes are gone",
            )
        } else if is_warm(claim) {
            (Kind::Warm, unspecified, "")
        } else {
            let (reason, message) = cold(memo, self.pool.as_ref());
            (Kind::Cold, reason, message)
        };
        Started {
            incarnation: self.hello.incarnation.clone(),
            pod_uid: self.start.uid.clone(),
            restarts: self.start.restarts,
            version: self.hello.version.clone(),
            capabilities: self.hello.capabilities.clone(),
            kind,
            cold_reason: cold_reason.into(),
            message: message.to_owned(),
            total_us: u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX),
            steps: self.steps.clone(),
            pool: self.pool.clone().or_else(|| memo.pool_found.clone()),
        }
    }
}

/// Why nothing that was waiting was used.
fn cold(memo: &Memo, pool: Option<&PoolMemo>) -> (ColdReason, &'static str) {
    let pool = pool.or(memo.pool_found.as_ref());
    if !memo.volumes.is_empty() {
        (
            ColdReason::Volume,
            "volumes are made for this sandbox alone; leave them out to start warm",
        )
    } else if memo.env_in_claim {
        (
            ColdReason::Env,
            "what runs in this template can't be given an environment once it runs; leave env out to start warm",
        )
    } else if pool.is_none_or(|pool| pool.wanted == 0) {
        (
            ColdReason::NoPool,
            "no SandboxWarmPool of the template has replicas; make one to start warm",
        )
    } else {
        (
            ColdReason::PoolEmpty,
            "no sandbox of the pool was ready; give it more replicas to start warm",
        )
    }
}

// === impl NotGreeted ===

impl NotGreeted {
    fn of(status: Status) -> Self {
        match Refusal::from_status(&status).map(|refusal| refusal.reason) {
            Some(ErrorReason::Unauthenticated) => Self::Never(format!(
                "what runs inside does not accept the server's tokens ({}): is its JWKS that of the server's keys, and its audience right?",
                status.message()
            )),
            _ => Self::Unreachable(status.to_string()),
        }
    }
}
