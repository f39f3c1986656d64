//! From a claim to a sandbox that takes calls: waiting for its pod, greeting what runs inside, writing down who it is.
//!
//! The server that made the claim does it at once. Others wait a moment and then do it too, should that one be gone; and
//! any does it for a pod that the cluster has replaced. All of it may be done twice.

use std::{collections::HashSet, sync::Arc, time::Duration};

use kube::api::{Patch, PatchParams};
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::{ConfigureRequest, ConfiguredEnv, EnvVar, HelloRequest, HelloResponse},
    v1::{ColdReason, ErrorReason},
};
use sandgate_provider::limits::{duration, millis, timestamp};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time, time::Instant};
use tonic::Status;

use crate::{
    api::{Claim, Version, bound, is_warm},
    create::{PROVISIONAL, at_ms},
    driver::Driver,
    memo::{Ended, Kind, Memo, Mode, PoolMemo, Started},
    reach::{PodStart, Reach},
    seal,
    shared::{NotChanged, Shared, is_gone},
    trouble::{self, Outlook},
    view::{Facts, now_ms, unix_ms},
    world::{Entry, Key},
};

/// The newest protocol generation that we speak.
const GENERATION: u32 = 1;
/// How long what runs inside may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Between two looks at a sandbox that comes up: some troubles are told by time alone.
const LOOK: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long others leave a sandbox to the server that made it.
const MAKERS_TIME: Duration = Duration::from_secs(3);
/// Until a Sandbox is told again to wake up.
const WAKE_AGAIN: Duration = Duration::from_secs(5);
/// What runs inside ends the sandbox at its deadline. The claim's own end comes after it, for when nothing runs.
const AFTER_DEADLINE: u64 = 5_000;
/// A runtime that has a deadline keeps one: this far away is never.
const NEVER_MS: u64 = 100 * 365 * 24 * 3600 * 1000;

/// When a sandbox was asked for, and how far it has come.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    at: Instant,
    pub(crate) posted: Option<Instant>,
    bound: Option<Instant>,
    ready: Option<Instant>,
    /// The pool that it was to come from, as it was then.
    pub(crate) pool: Option<PoolMemo>,
}

/// What to do next for a sandbox.
#[derive(Debug)]
enum Step {
    /// Nothing, ever.
    Over,
    Greet,
    Wake(String),
    Wait,
    Extend,
    GiveUp(String),
}

/// Why a greeting failed.
#[derive(Debug)]
enum NotGreeted {
    /// Nothing answers yet, or no longer.
    Unreachable(String),
    /// It never will.
    Never(String),
}

// === impl Asked ===

impl Asked {
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            posted: None,
            bound: None,
            ready: None,
            pool: None,
        }
    }

    fn see(&mut self, claim: &Claim, facts: &Facts<'_>) {
        if bound(claim).is_some() {
            self.bound.get_or_insert_with(Instant::now);
        }
        if facts.wants_greeting() {
            self.ready.get_or_insert_with(Instant::now);
        }
    }

    /// What the time was spent on, each step from the one before.
    fn steps(&self) -> Vec<(String, u64)> {
        let mut from = self.at;
        let mut steps = Vec::new();
        let named = [
            ("claim", self.posted),
            ("bound", self.bound),
            ("pod", self.ready),
            ("connect", Some(Instant::now())),
        ];
        for (name, at) in named {
            if let Some(at) = at {
                steps.push((name.to_owned(), micros(at.saturating_duration_since(from))));
                from = at.max(from);
            }
        }
        steps
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

// === impl Shared ===

impl Shared {
    /// Looks at every sandbox that something happened to, and sees to it that somebody brings it up.
    pub(crate) async fn look_after_all(self: Arc<Self>) {
        let mut closing = self.closing.subscribe();
        let mut waits = JoinSet::new();
        let mut waiting = HashSet::new();
        loop {
            let key = tokio::select! {
                _ = closing.wait_for(|closing| *closing) => return,
                Some(Ok(key)) = waits.join_next() => {
                    waiting.remove(&key);
                    continue;
                }
                key = self.world.attention() => key,
            };
            match self.world.look(&key, needs_somebody) {
                None => {
                    self.links().remove(&key);
                }
                Some(true) if waiting.insert(key.clone()) => {
                    waits.spawn(Arc::clone(&self).stand_in(key));
                }
                Some(_) => {}
            }
        }
    }

    /// Leaves a sandbox to the server that made it for a moment, and brings it up then if that one does not.
    async fn stand_in(self: Arc<Self>, key: Key) -> Key {
        time::sleep(MAKERS_TIME).await;
        let orphan = self.world.look(&key, |facts, entry| {
            needs_somebody(facts, entry).then(|| entry.uid().to_owned())
        });
        if let Some(uid) = orphan.flatten() {
            self.spawn_birth(&key, &uid, None);
        }
        key
    }

    /// Brings a sandbox up, unless that is being done here already.
    pub(crate) fn spawn_birth(self: &Arc<Self>, key: &Key, uid: &str, asked: Option<Asked>) {
        if !self.births().insert(uid.to_owned()) {
            return;
        }
        let (shared, key, uid) = (Arc::clone(self), key.clone(), uid.to_owned());
        tokio::spawn(async move {
            shared.birth(&key, &uid, asked).await;
            shared.births().remove(&uid);
        });
    }

    async fn birth(self: &Arc<Self>, key: &Key, uid: &str, mut asked: Option<Asked>) {
        let mut ticks = self.table().ticks();
        let mut pause = FIRST_PAUSE;
        let mut woken: Option<Instant> = None;
        let is_maker = asked.is_some();
        while !self.is_closing() {
            ticks.mark_unchanged();
            let step = self.world.look(key, |facts, entry| {
                if let Some(asked) = &mut asked {
                    asked.see(&entry.claim, facts);
                }
                next_step(facts, entry, uid, is_maker)
            });
            match step.unwrap_or(Step::Over) {
                Step::Over => return,
                Step::GiveUp(why) => return self.give_up(key, uid, &why).await,
                Step::Greet => match self.greet(key, uid, asked.as_ref()).await {
                    Ok(()) => {}
                    Err(NotGreeted::Never(why)) => return self.give_up(key, uid, &why).await,
                    Err(NotGreeted::Unreachable(error)) => {
                        tracing::debug!(sandbox = %key, error, "what runs inside does not answer yet");
                        time::sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                },
                Step::Wake(sandbox) if woken.is_none_or(|at| at.elapsed() >= WAKE_AGAIN) => {
                    woken = Some(Instant::now());
                    self.set_running(key, &sandbox, true).await;
                }
                Step::Extend => self.extend(key, uid).await,
                Step::Wait | Step::Wake(_) => self.news(&mut ticks, LOOK).await,
            }
        }
    }

    /// Tells the Sandbox of a claim to run or to sleep.
    pub(crate) async fn set_running(&self, key: &Key, sandbox: &str, running: bool) {
        let spec = match (self.resources.version, running) {
            (Version::V1beta1, true) => json!({"operatingMode": "Running"}),
            (Version::V1beta1, false) => json!({"operatingMode": "Suspended"}),
            (Version::V1alpha1, running) => json!({"replicas": i32::from(running)}),
        };
        let patch = json!({"spec": spec});
        let api = self.sandboxes(&key.namespace);
        // Whoever waits for it asks again.
        if let Err(error) = api.patch(sandbox, &PatchParams::default(), &Patch::Merge(&patch)).await {
            tracing::warn!(sandbox = %key, %error, running, "its Sandbox can't be changed");
        }
    }

    /// A claim that is waited for must not end meanwhile.
    async fn extend(&self, key: &Key, uid: &str) {
        let until = at_ms(now_ms() + millis(PROVISIONAL));
        let revised = self.revise(key, uid, |_, _| {
            Ok(Some(json!({"spec": {"lifecycle": {"shutdownTime": until}}})))
        });
        if let Err(NotChanged::Refused(refusal)) = revised.await {
            tracing::warn!(sandbox = %key, %refusal, "its claim can't be extended");
            time::sleep(LOOK).await;
        }
    }

    async fn give_up(&self, key: &Key, uid: &str, why: &str) {
        tracing::warn!(sandbox = %key, uid, why, "given up");
        self.world.note_refusal(uid, trouble::refusal(&key.name, why));
        self.withdraw(key, uid).await;
    }

    /// Deletes a claim that this server made and nobody has used.
    pub(crate) async fn withdraw(&self, key: &Key, uid: &str) {
        if let Err(error) = self
            .claims(&key.namespace)
            .delete(&key.name, &crate::stop::only(uid))
            .await
            && !is_gone(&error)
        {
            tracing::warn!(sandbox = %key, %error, "its claim can't be deleted; it ends by itself");
        }
    }

    /// Learns who runs inside, tells it what it must know, and writes it down for all servers.
    async fn greet(self: &Arc<Self>, key: &Key, uid: &str, asked: Option<&Asked>) -> Result<(), NotGreeted> {
        let gone = || NotGreeted::Unreachable("its pod is gone".to_owned());
        let reach = self.reach(key).ok_or_else(gone)?;
        let hello = hello(&reach).await.map_err(NotGreeted::of)?;
        reach.know(&hello.incarnation);
        let memo = self.world.look(key, |_, entry| entry.memo.clone()).ok_or_else(gone)?;
        let env = self
            .env(key, &memo)
            .map_err(|refusal| NotGreeted::Never(refusal.message))?;
        configure(&reach, &hello.incarnation, &memo, env)
            .await
            .map_err(NotGreeted::of)?;
        let steps = asked.map(Asked::steps).unwrap_or_default();
        let total_us = asked.map_or(0, |asked| micros(asked.at.elapsed()));
        let pool = asked.and_then(|asked| asked.pool.clone());
        let revised = self.revise(key, uid, |claim, memo| {
            let is_done = |started: &Started| started.incarnation == hello.incarnation && reach.start.is_of(started);
            if memo.mode == Mode::Suspended || memo.started.as_ref().is_some_and(is_done) {
                return Ok(None);
            }
            memo.last_end = self.last_end(key).or(memo.last_end.take());
            memo.started = Some(started(
                claim,
                memo,
                &hello,
                &reach.start,
                (steps.clone(), total_us, pool.clone()),
            ));
            memo.mode = Mode::Running;
            Ok(Some(json!({"spec": {"lifecycle": lifecycle(memo)}})))
        });
        match revised.await {
            Ok(()) => {
                tracing::info!(sandbox = %key, incarnation = hello.incarnation, took = ?Duration::from_micros(total_us), "ready");
                Ok(())
            }
            Err(NotChanged::Gone) => Err(gone()),
            Err(NotChanged::Refused(refusal)) => Err(NotGreeted::Unreachable(refusal.message)),
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

/// Whether a sandbox should be brought up, by whomever.
fn needs_somebody(facts: &Facts<'_>, entry: &Entry) -> bool {
    let wakes = entry.memo.mode == Mode::Waking && entry.claim.metadata.deletion_timestamp.is_none();
    facts.wants_greeting() || wakes
}

fn next_step(facts: &Facts<'_>, entry: &Entry, uid: &str, is_maker: bool) -> Step {
    let (claim, memo) = (&entry.claim, &entry.memo);
    let leaves = claim.metadata.deletion_timestamp.is_some();
    if entry.uid() != uid
        || leaves
        || memo.mode == Mode::Suspended
        || (facts.is_greeted() && memo.mode == Mode::Running)
    {
        return Step::Over;
    }
    if facts.wants_greeting() || (facts.is_greeted() && !facts.pod.is_some_and(crate::ending::is_over)) {
        return Step::Greet;
    }
    if memo.mode == Mode::Waking && facts.is_asleep() {
        return match (bound(claim), facts.pod) {
            (Some(sandbox), None) => Step::Wake(sandbox.to_owned()),
            // The controller would call the dying pod ready.
            _ => Step::Wait,
        };
    }
    if memo.started.is_some() {
        return Step::Wait;
    }
    if let Outlook::Never(why) = facts.outlook() {
        return Step::GiveUp(why);
    }
    let ends = claim
        .spec
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.shutdown_time.as_ref());
    let left = ends.map_or(u64::MAX, |ends| unix_ms(ends).saturating_sub(now_ms()));
    match is_maker && left < millis(PROVISIONAL) / 3 {
        true => Step::Extend,
        false => Step::Wait,
    }
}

/// When a claim ends that is ready.
pub(crate) fn lifecycle(memo: &Memo) -> Value {
    let end = match memo.driver {
        Driver::Runtime => memo.deadline_ms.map(|deadline| deadline.saturating_add(AFTER_DEADLINE)),
        // Nothing inside knows of an end: what the idle limit leaves is a lease, which calls renew.
        _ => {
            let lease = memo.idle_ms.map(|idle| now_ms().saturating_add(idle));
            [lease, memo.deadline_ms].into_iter().flatten().min()
        }
    };
    let asleep = memo.mode != Mode::Running;
    json!({
        "shutdownTime": end.map(at_ms),
        // What ends while it is put to sleep must not take the claim with it.
        "ttlSecondsAfterFinished": if asleep { Value::Null } else { json!(0) },
        "shutdownPolicy": "Delete",
    })
}

fn started(
    claim: &Claim,
    memo: &Memo,
    hello: &HelloResponse,
    start: &PodStart,
    (steps, total_us, pool): (Vec<(String, u64)>, u64, Option<PoolMemo>),
) -> Started {
    let (kind, cold_reason, message) = if memo.mode == Mode::Waking {
        (
            Kind::Resumed,
            ColdReason::Unspecified,
            "started again from its kept volumes",
        )
    } else if memo.started.is_some() {
        (
            Kind::Replaced,
            ColdReason::Unspecified,
            "the cluster replaced its pod; files outside of volumes are gone",
        )
    } else if is_warm(claim) {
        (Kind::Warm, ColdReason::Unspecified, "")
    } else {
        let (reason, message) = cold(memo, pool.as_ref());
        (Kind::Cold, reason, message)
    };
    Started {
        incarnation: hello.incarnation.clone(),
        pod_uid: start.uid.clone(),
        restarts: start.restarts,
        version: hello.version.clone(),
        capabilities: hello.capabilities.clone(),
        kind,
        cold_reason: cold_reason.into(),
        message: message.to_owned(),
        total_us,
        steps,
        pool: pool.or_else(|| memo.started.as_ref().and_then(|started| started.pool.clone())),
    }
}

/// Why nothing that was waiting was used.
fn cold(memo: &Memo, pool: Option<&PoolMemo>) -> (ColdReason, &'static str) {
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

async fn hello(reach: &Reach) -> Result<HelloResponse, Status> {
    let mut client = reach.link.client();
    let asked = client.hello(HelloRequest { generation: GENERATION });
    Ok(answer(asked).await?.into_inner())
}

async fn configure(reach: &Reach, incarnation: &str, memo: &Memo, vars: Vec<EnvVar>) -> Result<(), Status> {
    let request = ConfigureRequest {
        expected_incarnation: incarnation.to_owned(),
        deadline: Some(timestamp(memo.deadline_ms.unwrap_or(now_ms() + NEVER_MS))),
        idle_limit: Some(duration(Duration::from_millis(memo.idle_ms.unwrap_or(0)))),
        env: Some(ConfiguredEnv { vars }),
    };
    let mut client = reach.link.client();
    answer(client.configure(request)).await.map(drop)
}

async fn answer<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::unavailable("it does not answer");
    time::timeout(ANSWER, call).await.map_err(late)?
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
