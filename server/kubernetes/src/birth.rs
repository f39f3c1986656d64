//! From a claim to a sandbox that takes calls: waiting for its pod until what runs inside can be greeted.
//!
//! The server that made the claim does it at once. Others wait a moment and then do it too, should that one be gone; and
//! any does it for a pod that the cluster has replaced. All of it may be done twice.

use std::{collections::HashSet, sync::Arc, time::Duration};

use kube::api::{Patch, PatchParams};
use sandgate_errors::Refusal;
use sandgate_provider::limits::millis;
use serde_json::json;
use tokio::{task::JoinSet, time, time::Instant};

use crate::{
    api::{Claim, Version, bound},
    ending,
    greet::NotGreeted,
    lifecycle::{PROVISIONAL, at_ms, ends_ms, ends_with_its_pod},
    memo::{Mode, PoolMemo},
    shared::{Shared, failed, is_gone},
    trouble::{self, Outlook},
    view::{Facts, now_ms},
    world::{Entry, Key},
};

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

    /// Whether whoever asked has made the claim.
    pub(crate) fn is_maker(&self) -> bool {
        self.posted.is_some()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.at.elapsed()
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
    pub(crate) fn steps(&self) -> Vec<(String, u64)> {
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
        let (mut waits, mut keeps) = (JoinSet::new(), JoinSet::new());
        let (mut waiting, mut keeping) = (HashSet::new(), HashSet::new());
        loop {
            let key = tokio::select! {
                _ = closing.wait_for(|closing| *closing) => return,
                Some(Ok(key)) = waits.join_next() => {
                    waiting.remove(&key);
                    continue;
                }
                Some(Ok(key)) = keeps.join_next() => {
                    keeping.remove(&key);
                    continue;
                }
                key = self.world.attention() => key,
            };
            let loses = self.world.look(&key, |facts, entry| {
                loses_its_pod(facts, entry).then(|| entry.uid().to_owned())
            });
            if let Some(uid) = loses.flatten()
                && keeping.insert(key.clone())
            {
                keeps.spawn(Arc::clone(&self).keep(key.clone(), uid));
            }
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

    /// A pod that is deleted, as by a drain, has ended before it is gone, and the claim would go with it, files and all.
    /// Told in time, the controller makes another pod.
    async fn keep(self: Arc<Self>, key: Key, uid: String) -> Key {
        let patch = json!({"metadata": {"uid": uid}, "spec": {"lifecycle": {"ttlSecondsAfterFinished": null}}});
        let api = self.claims(&key.namespace);
        match api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            Ok(kept) => self.world.put_claim(kept),
            Err(error) if is_gone(&error) => {}
            Err(error) => tracing::warn!(sandbox = %key, %error, "its claim may go with its pod"),
        }
        key
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
}

/// Whether a sandbox should be brought up or put to sleep, by whomever.
fn needs_somebody(facts: &Facts<'_>, entry: &Entry) -> bool {
    let stays = entry.claim.metadata.deletion_timestamp.is_none();
    let under_way = match entry.memo.mode {
        Mode::Running => false,
        Mode::Waking => true,
        Mode::Suspended => !facts.is_asleep(),
    };
    facts.wants_greeting() || (stays && (under_way || entry.has_unwritten_start()))
}

/// Whether its pod is being deleted, and nothing else is.
fn loses_its_pod(facts: &Facts<'_>, entry: &Entry) -> bool {
    entry.claim.metadata.deletion_timestamp.is_none()
        && entry.memo.mode == Mode::Running
        && ends_with_its_pod(&entry.claim)
        && facts.pod.is_some_and(ending::is_deleted)
}

fn next_step(facts: &Facts<'_>, entry: &Entry, uid: &str, is_maker: bool) -> Step {
    let (claim, memo) = (&entry.claim, &entry.memo);
    let leaves = claim.metadata.deletion_timestamp.is_some();
    let is_up = facts.is_greeted() && memo.mode == Mode::Running;
    if entry.uid() != uid || leaves || (is_up && !entry.has_unwritten_start()) {
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
            // Somebody else had put it to sleep, and thought better of it.
            (_, Some(pod)) if facts.is_greeted() && !facts.is_asleep() && !ending::is_over(pod) => Step::Greet,
            _ => Step::Wait,
        };
    }
    if is_up || facts.wants_greeting() {
        return Step::Greet;
    }
    if memo.started.is_some() {
        return Step::Wait;
    }
    if let Outlook::Never(why) = facts.outlook() {
        return Step::GiveUp(why);
    }
    let left = ends_ms(claim).map_or(u64::MAX, |ends| ends.saturating_sub(now_ms()));
    let is_overdue = memo.deadline_ms.is_some_and(|deadline| deadline <= now_ms());
    match is_maker && !is_overdue && left < millis(PROVISIONAL) / 3 {
        true => Step::Extend,
        false => Step::Wait,
    }
}
