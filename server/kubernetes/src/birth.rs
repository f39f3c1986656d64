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
use sandgate_provider::{
    inside,
    limits::{duration, millis, timestamp},
};
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
    shared::{NotChanged, Shared, failed, is_gone},
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
/// Nobody is given longer to end.
const LONGEST_GRACE: Duration = Duration::from_secs(600);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long others leave a sandbox to the server that made it.
const MAKERS_TIME: Duration = Duration::from_secs(3);
/// Until a Sandbox is told again to run or to sleep.
const TELL_AGAIN: Duration = Duration::from_secs(5);
/// How long a pod may take to learn of the server's keys, once it runs.
const KEYS_TIME: Duration = Duration::from_secs(90);
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
    /// Its Sandbox is to run, or to sleep.
    Wake(String),
    Sleep(String),
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
        let by = self.world.look(&key, |_, entry| entry.memo.asleep_by_ms).flatten();
        let left = Duration::from_millis(by.unwrap_or(0).saturating_sub(now_ms()));
        time::sleep(MAKERS_TIME + left.min(LONGEST_GRACE)).await;
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
        let mut told: Option<Instant> = None;
        let mut refused: Option<Instant> = None;
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
                    // Keys take their time to come to a pod. And one that was used is never given up: its files are there.
                    Err(NotGreeted::Never(why)) => {
                        let since = *refused.get_or_insert_with(Instant::now);
                        if self.is_unused(key) && since.elapsed() >= KEYS_TIME {
                            return self.give_up(key, uid, &why).await;
                        }
                        tracing::warn!(sandbox = %key, why, "what runs inside does not let the server in");
                        time::sleep(LONGEST_PAUSE).await;
                    }
                    Err(NotGreeted::Unreachable(error)) => {
                        tracing::debug!(sandbox = %key, error, "what runs inside does not answer yet");
                        time::sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                },
                Step::Wake(sandbox) if told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) => {
                    told = self
                        .set_running(key, &sandbox, true)
                        .await
                        .ok()
                        .map(|()| Instant::now());
                }
                Step::Sleep(sandbox) if told.is_none_or(|at| at.elapsed() >= TELL_AGAIN) => {
                    told = self
                        .set_running(key, &sandbox, false)
                        .await
                        .ok()
                        .map(|()| Instant::now());
                }
                Step::Extend => self.extend(key, uid).await,
                Step::Wait | Step::Wake(_) | Step::Sleep(_) => self.news(&mut ticks, LOOK).await,
            }
        }
    }

    /// Whether nobody can have used a sandbox yet.
    fn is_unused(&self, key: &Key) -> bool {
        self.world
            .look(key, |_, entry| entry.memo.started.is_none())
            .unwrap_or(true)
    }

    /// Tells the Sandbox of a claim to run or to sleep.
    ///
    /// # Errors
    /// When the server may not. Whoever waits for it asks again after any other failure.
    pub(crate) async fn set_running(&self, key: &Key, sandbox: &str, running: bool) -> Result<(), Refusal> {
        let spec = match (self.resources.version, running) {
            (Version::V1beta1, true) => json!({"operatingMode": "Running"}),
            (Version::V1beta1, false) => json!({"operatingMode": "Suspended"}),
            (Version::V1alpha1, running) => json!({"replicas": i32::from(running)}),
        };
        let patch = json!({"spec": spec});
        let api = self.sandboxes(&key.namespace);
        match api.patch(sandbox, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Err(failed("its Sandbox can't be changed", &kube::Error::Api(status)));
            }
            Err(error) => tracing::warn!(sandbox = %key, %error, running, "its Sandbox can't be changed"),
        }
        Ok(())
    }

    /// A claim that is waited for must not end meanwhile.
    async fn extend(&self, key: &Key, uid: &str) {
        let deadline = self.world.look(key, |_, entry| entry.memo.deadline_ms).flatten();
        let until = (now_ms() + millis(PROVISIONAL)).min(deadline.unwrap_or(u64::MAX));
        let patch = json!({"metadata": {"uid": uid}, "spec": {"lifecycle": {"shutdownTime": at_ms(until)}}});
        let api = self.claims(&key.namespace);
        match api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(extended) => self.world.put_claim(extended),
            Err(error) => {
                tracing::warn!(sandbox = %key, %error, "its claim can't be extended");
                time::sleep(LOOK).await;
            }
        }
    }

    async fn give_up(&self, key: &Key, uid: &str, why: &str) {
        tracing::warn!(sandbox = %key, uid, why, "given up");
        self.world.note_refusal(uid, trouble::refusal(&key.name, why));
        self.withdraw(key, uid).await;
    }

    /// Deletes a claim that nobody has used.
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
        // What others need is told to them with each command, by each server.
        if reach.keeps_limits() {
            let env = self
                .env(key, &memo)
                .map_err(|refusal| NotGreeted::Never(refusal.message))?;
            configure(&reach, &hello.incarnation, &memo, env)
                .await
                .map_err(NotGreeted::of)?;
        }
        let steps = asked.map(Asked::steps).unwrap_or_default();
        let total_us = asked.map_or(0, |asked| micros(asked.at.elapsed()));
        let pool = asked.and_then(|asked| asked.pool.clone());
        let only_writer = asked.is_some_and(|asked| asked.posted.is_some());
        let mut limits = (memo.deadline_ms, memo.idle_ms);
        let revised = self.revise_as(only_writer, key, uid, |claim, memo| {
            limits = (memo.deadline_ms, memo.idle_ms);
            let is_done = |started: &Started| started.incarnation == hello.incarnation && reach.start.is_of(started);
            let is_done = memo.started.as_ref().is_some_and(is_done);
            if memo.mode == Mode::Suspended || (is_done && memo.mode == Mode::Running) {
                return Ok(None);
            }
            if !is_done {
                memo.last_end = self.last_end(key).or(memo.last_end.take());
                let how = (steps.clone(), total_us, pool.clone());
                memo.started = Some(started(claim, memo, &hello, &reach.start, how));
            }
            memo.mode = Mode::Running;
            Ok(Some(json!({"spec": {"lifecycle": lifecycle(memo)}})))
        });
        let revised = revised.await;
        // They were changed meanwhile, by whoever could not tell what was not greeted yet.
        if limits != (memo.deadline_ms, memo.idle_ms) && reach.keeps_limits() {
            let told = inside::set_limits(&reach.link, limits.0, limits.1, now_ms()).await;
            told.map_err(NotGreeted::of)?;
        }
        match revised {
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

/// Whether a sandbox should be brought up or put to sleep, by whomever.
fn needs_somebody(facts: &Facts<'_>, entry: &Entry) -> bool {
    let stays = entry.claim.metadata.deletion_timestamp.is_none();
    let under_way = match entry.memo.mode {
        Mode::Running => false,
        Mode::Waking => true,
        Mode::Suspended => !facts.is_asleep(),
    };
    facts.wants_greeting() || (stays && under_way)
}

fn next_step(facts: &Facts<'_>, entry: &Entry, uid: &str, is_maker: bool) -> Step {
    let (claim, memo) = (&entry.claim, &entry.memo);
    let leaves = claim.metadata.deletion_timestamp.is_some();
    if entry.uid() != uid || leaves || (facts.is_greeted() && memo.mode == Mode::Running) {
        return Step::Over;
    }
    let sandbox = bound(claim).map(str::to_owned);
    if memo.mode == Mode::Suspended {
        let due = memo.asleep_by_ms.is_none_or(|by| by <= now_ms());
        return match sandbox {
            _ if facts.is_asleep() => Step::Over,
            Some(sandbox) if due => Step::Sleep(sandbox),
            _ => Step::Wait,
        };
    }
    if memo.mode == Mode::Waking {
        // What was told to end must be gone first: it may end at any moment, and the controller calls a dying pod ready.
        return match (sandbox, facts.pod) {
            (Some(sandbox), Some(pod)) if facts.was_told_to_end(pod) && !facts.is_asleep() => Step::Sleep(sandbox),
            (Some(sandbox), None) if facts.is_asleep() => Step::Wake(sandbox),
            _ if facts.wants_greeting() => Step::Greet,
            _ => Step::Wait,
        };
    }
    if facts.wants_greeting() {
        return Step::Greet;
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
    let is_overdue = memo.deadline_ms.is_some_and(|deadline| deadline <= now_ms());
    match is_maker && !is_overdue && left < millis(PROVISIONAL) / 3 {
        true => Step::Extend,
        false => Step::Wait,
    }
}

/// When a claim ends that is ready.
pub(crate) fn lifecycle(memo: &Memo) -> Value {
    let end = match memo.driver {
        Driver::Runtime => memo.deadline_ms.map(|deadline| deadline.saturating_add(AFTER_DEADLINE)),
        // Nothing inside knows of an end: what the idle limit leaves is a lease, which calls renew. One that sleeps is
        // not idle.
        _ => {
            let runs = memo.mode == Mode::Running;
            let lease = memo.idle_ms.filter(|_| runs).map(|idle| now_ms().saturating_add(idle));
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
        pool: pool.or_else(|| memo.pool_found.clone()),
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
