//! Suspending, waking and deleting.

use std::{sync::Arc, time::Duration};

use http::{Request, header::CONTENT_TYPE};
use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use sandgate_errors::Refusal;
use sandgate_proto::v1::{EndCause, ErrorReason, Sandbox, SandboxState};
use sandgate_provider::{Begun, Name, Removed, inside, limits::millis};
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use crate::{
    api::bound,
    ending,
    lifecycle::lifecycle,
    memo::{Ended, Mode},
    reach::Reach,
    shared::{NotChanged, RETRY_AFTER, Shared, failed, is_conflict, is_gone, not_found},
    view::{Facts, now_ms},
    world::{Entry, Key},
};

/// Beyond the grace time, until the cluster has removed a pod.
const PATIENCE: Duration = Duration::from_secs(90);
/// Beyond the grace time, until the kubelet tells that a container has ended.
const KUBELET: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(1);
/// How long the cluster may take to tell a pod that it is to end.
const TOLD: Duration = Duration::from_secs(15);
/// Until a Sandbox is told again to sleep.
const SLEEP_AGAIN: Duration = Duration::from_secs(5);

/// A sandbox as it was when a call began.
#[derive(Debug)]
struct Sight {
    uid: String,
    incarnation: Option<String>,
    last: Option<String>,
    is_asleep: bool,
}

/// Deletes that claim and no later one of its name, and answers for the claim when everything below it is gone.
pub(crate) fn only(uid: &str) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    }
}

// === impl Shared ===

impl Shared {
    pub(crate) async fn suspend(
        self: &Arc<Self>,
        name: &Name,
        expected: Option<&str>,
        grace: Duration,
    ) -> Result<Arc<Sandbox>, Refusal> {
        let key = self.seek(name).await.ok_or_else(|| not_found(name))?;
        self.once_started(&key).await;
        let seen = self.world.look(&key, Sight::see).ok_or_else(|| not_found(name))?;
        seen.check(expected)?;
        if seen.is_asleep {
            return self.table().get(name.as_str()).ok_or_else(|| not_found(name));
        }
        let uid = seen.uid.clone();
        let noted = self.revise(&key, &uid, |_, memo| {
            let now = memo.started.as_ref().map(|started| &started.incarnation);
            if expected.is_some() && seen.incarnation.is_some() && now != seen.incarnation.as_ref() {
                return Err(restarted(expected.unwrap_or_default()));
            }
            memo.mode = Mode::Suspended;
            memo.asleep_by_ms = Some(now_ms().saturating_add(millis(grace + KUBELET)));
            memo.last_end = seen
                .incarnation
                .as_ref()
                .map(|incarnation| Ended {
                    incarnation: incarnation.clone(),
                    cause: EndCause::Suspended.into(),
                    message: "it was suspended".to_owned(),
                    at_ms: now_ms(),
                })
                .or(memo.last_end.take());
            Ok(Some(json!({"spec": {"lifecycle": lifecycle(memo)}})))
        });
        noted.await.map_err(|error| error.refusal(name))?;
        if seen.incarnation.is_some() {
            self.end_processes(&key, grace).await;
        }
        self.until_asleep(&key, &uid, grace).await?;
        self.table().get(name.as_str()).ok_or_else(|| not_found(name))
    }

    /// Ends what runs inside by its own means, which keeps the caller's grace time; a pod's is fixed.
    async fn end_processes(self: &Arc<Self>, key: &Key, grace: Duration) {
        // Another program than our runtime can't be told to end.
        let Some(reach) = self.reach(key).filter(Reach::keeps_limits) else {
            return;
        };
        if inside::stop(&reach.link, Some(grace)).await.is_err() {
            return;
        }
        let until = Instant::now() + grace + KUBELET;
        let mut ticks = self.table().ticks();
        let ended = || {
            self.world
                .look(key, |facts, _| facts.pod.is_none_or(ending::is_over))
                .unwrap_or(true)
        };
        while !ended() && Instant::now() < until {
            // The end of a pod is not always something that callers see.
            self.news(&mut ticks, Duration::from_millis(50)).await;
        }
    }

    /// A controller whose watch is behind, as after a restart of the API server, makes the pod of a Sandbox anew that is
    /// being deleted. Nobody deletes that one, and the Sandbox waits for its end for ever (Kubernetes 1.34, agent-sandbox
    /// 1.0.3). One that no longer waits goes at once, and all that was its own after it.
    async fn let_go(&self, key: &Key) {
        let risen = self.world.look(key, |facts, entry| {
            let lives = facts.pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none());
            bound(&entry.claim).filter(|_| lives).map(str::to_owned)
        });
        let Some(sandbox) = risen.flatten() else {
            return;
        };
        let waits = json!(["foregroundDeletion"]);
        let patch = json!([
            {"op": "test", "path": "/metadata/finalizers", "value": waits},
            {"op": "remove", "path": "/metadata/finalizers"},
        ]);
        let place = self.sandboxes(&key.namespace).resource_url().to_owned();
        let request = Request::patch(format!("{place}/{sandbox}"))
            .header(CONTENT_TYPE, "application/json-patch+json")
            .body(patch.to_string().into_bytes());
        let Ok(request) = request else { return };
        let done = self.client.request::<Value>(request).await.map(drop);
        tracing::warn!(sandbox = %key, ?done, "it was started again while it was being deleted");
    }

    /// Tells its Sandbox to sleep, and waits until its pod is gone; or until somebody wakes it.
    async fn until_asleep(&self, key: &Key, uid: &str, grace: Duration) -> Result<(), Refusal> {
        let until = Instant::now() + grace + PATIENCE;
        let mut ticks = self.table().ticks();
        let mut told: Option<Instant> = None;
        loop {
            ticks.mark_unchanged();
            let now = self.world.look(key, |facts, entry| {
                let wanted = entry.uid() == uid && entry.memo.mode == Mode::Suspended;
                let asleep = facts.is_asleep() && facts.pod.is_none();
                (wanted, asleep, bound(&entry.claim).map(str::to_owned))
            });
            match now {
                None | Some((false, ..) | (true, true, _)) => return Ok(()),
                Some((true, false, Some(sandbox))) if told.is_none_or(|at| at.elapsed() >= SLEEP_AGAIN) => {
                    told = Some(Instant::now());
                    self.set_running(key, &sandbox, false).await?;
                }
                Some(_) if Instant::now() >= until => {
                    let message = format!("sandbox {} is still being suspended; try again", key.name);
                    return Err(Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER));
                }
                Some(_) => self.news(&mut ticks, LOOK).await,
            }
        }
    }

    pub(crate) async fn resume(self: &Arc<Self>, name: &Name) -> Result<Begun, Refusal> {
        let key = self.seek(name).await.ok_or_else(|| not_found(name))?;
        // Another server may have removed it a moment ago. Where nobody can say, what is known is as good as anything.
        let _ = time::timeout(LOOK, self.reread(&key)).await;
        let uid = self.world.look(&key, |_, entry| entry.uid().to_owned());
        let uid = uid.ok_or_else(|| not_found(name))?;
        self.resume_claim(&key, &uid).await?.ok_or_else(|| not_found(name))
    }

    /// Sees to it that a sandbox runs in the end. `None`: it is gone.
    pub(crate) async fn resume_claim(self: &Arc<Self>, key: &Key, uid: &str) -> Result<Option<Begun>, Refusal> {
        let state = || self.table().get(&key.name).filter(|known| known.uid == uid);
        let Some(sandbox) = state() else {
            return Ok(None);
        };
        let sleeps = match sandbox.state() {
            SandboxState::Failed => {
                return Err(Refusal::new(ErrorReason::SandboxFailed, &sandbox.state_message));
            }
            SandboxState::Deleting => return Ok(None),
            SandboxState::Suspended | SandboxState::Suspending => true,
            _ => false,
        };
        if sleeps {
            let woken = self.revise(key, uid, |_, memo| {
                memo.mode = Mode::Waking;
                memo.asleep_by_ms = None;
                Ok(Some(json!({})))
            });
            match woken.await {
                Ok(()) => {}
                Err(NotChanged::Gone) => return Ok(None),
                Err(NotChanged::Refused(refusal)) => return Err(refusal),
            }
            self.spawn_birth(key, uid, Some(crate::birth::Asked::now()));
        }
        Ok(state().map(|sandbox| Begun {
            sandbox,
            created: false,
            resumed: sleeps,
        }))
    }

    pub(crate) async fn delete(
        self: &Arc<Self>,
        name: &Name,
        uid: Option<&str>,
        grace: Option<Duration>,
    ) -> Result<Removed, Refusal> {
        let Some(key) = self.seek(name).await else {
            return Ok(Removed::default());
        };
        let Some(seen) = self.world.look(&key, |facts, entry| {
            (Sight::see(facts, entry), entry.memo.volumes.clone())
        }) else {
            return Ok(Removed::default());
        };
        let (seen, volumes) = seen;
        if uid.is_some_and(|uid| uid != seen.uid) {
            return Ok(Removed::default());
        }
        let reach = self.reach(&key).filter(|_| seen.incarnation.is_some());
        let execs_ended = match &reach {
            Some(reach) => inside::alive_execs(&reach.link).await,
            None => 0,
        };
        let runtime = reach.filter(Reach::keeps_limits);
        if let Some(grace) = grace.filter(|_| runtime.is_some()) {
            self.end_processes(&key, grace).await;
        }
        match self.claims(&key.namespace).delete(&key.name, &only(&seen.uid)).await {
            Ok(_) => {}
            Err(error) if is_gone(&error) || is_conflict(&error) => {}
            Err(error) => return Err(failed("the claim can't be deleted", &error)),
        }
        if let Some(reach) = runtime.filter(|_| grace.is_none()) {
            // The kubelet would wait for what ignores TERM.
            let _ = time::timeout(LOOK, inside::stop(&reach.link, None)).await;
        }
        let uid = seen.uid.as_str();
        let until = Instant::now() + PATIENCE;
        while !self
            .table()
            .wait(TOLD, |now| now.get(name.as_str()).is_none_or(|now| now.uid != uid))
            .await
        {
            if Instant::now() >= until {
                let message = format!("sandbox {name} is still being removed; try again");
                return Err(Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER));
            }
            self.let_go(&key).await;
        }
        Ok(Removed {
            existed: true,
            uid: seen.uid,
            incarnation: seen.incarnation.or(seen.last).unwrap_or_default(),
            execs_ended,
            disk_bytes: None,
            volumes: volumes.into_iter().map(|volume| volume.name).collect(),
        })
    }
}

// === impl Sight ===

impl Sight {
    fn see(facts: &Facts<'_>, entry: &Entry) -> Self {
        let sandbox = facts.view();
        let started = facts.memo.started.as_ref().map(|started| started.incarnation.clone());
        Self {
            uid: entry.uid().to_owned(),
            incarnation: started.clone().filter(|_| facts.is_greeted()),
            last: sandbox.last_end.as_ref().map(|end| end.incarnation.clone()).or(started),
            is_asleep: sandbox.state() == SandboxState::Suspended,
        }
    }

    /// One that has ended is as good as the current one, if nothing was started since: the call is only repeated.
    fn check(&self, expected: Option<&str>) -> Result<(), Refusal> {
        let current = self.incarnation.as_ref().or(self.last.as_ref());
        match expected {
            Some(expected) if current.is_some_and(|current| current != expected) => Err(restarted(expected)),
            _ => Ok(()),
        }
    }
}

fn restarted(expected: &str) -> Refusal {
    let message = "the sandbox was restarted since; the one that runs now was left alone";
    Refusal::new(ErrorReason::SandboxRestarted, message).with("incarnation", expected)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::{
        memo::Memo,
        testing::{Log, claim, claim_object, provider},
    };

    /// A provider with a claim `a`, whose pod lives or is dying.
    fn with_a_pod(lives: bool) -> (Arc<Shared>, Log) {
        let mut there = claim("a", "u", 5, &Memo::default());
        there["status"] = json!({"sandbox": {"name": "a-pod"}});
        let answer = there.clone();
        let (shared, log) = provider(move |_| (200, answer.clone()));
        shared.world.put_claim(claim_object(&there));
        let mut pod = json!({"metadata": {"name": "a-pod", "namespace": "ns", "uid": "p"}});
        if !lives {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        shared.world.put_pod(serde_json::from_value::<Pod>(pod).unwrap());
        (shared, log)
    }

    fn patches(log: &Log) -> Vec<(String, Value)> {
        let asked = log.lock().unwrap();
        let patches = asked.iter().filter(|asked| asked.method == "PATCH");
        patches.map(|asked| (asked.path.clone(), asked.body.clone())).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_rose_again_does_not_keep_a_sandbox_from_going() {
        let (shared, log) = with_a_pod(true);
        let name = Name::parse("name", "a").unwrap();
        let cluster = async {
            while patches(&log).is_empty() {
                time::sleep(LOOK).await;
            }
            shared.world.drop_claim(&Key::new("ns", "a"), Some("u"));
        };
        let (removed, ()) = tokio::join!(shared.delete(&name, None, None), cluster);
        assert!(removed.unwrap().existed);
        let [(path, patch)] = patches(&log).try_into().unwrap();
        assert!(path.ends_with("/sandboxes/a-pod"), "{path}");
        // Only what waits for nothing but its pod.
        assert_eq!(patch[0]["value"], json!(["foregroundDeletion"]));
        assert_eq!((&patch[0]["op"], &patch[1]["op"]), (&json!("test"), &json!("remove")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_takes_its_time_to_end_is_waited_for() {
        let (shared, log) = with_a_pod(false);
        let name = Name::parse("name", "a").unwrap();
        let cluster = async {
            time::sleep(3 * TOLD).await;
            shared.world.drop_claim(&Key::new("ns", "a"), Some("u"));
        };
        let (removed, ()) = tokio::join!(shared.delete(&name, None, None), cluster);
        assert!(removed.unwrap().existed);
        assert_eq!(patches(&log), []);
    }
}
