//! A sandbox as callers see it, put together from its claim, its pod and what this server knows by itself.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use sandgate_proto::v1::{
    Connection, EnforcementLevel, IncarnationEnd, IsolationMechanism, RuleEnforcement, Sandbox, SandboxState,
};
use sandgate_provider::limits::{duration, millis, timestamp};
use sha2::{Digest as _, Sha256};

use crate::{
    api::{Claim, condition, is_true},
    driver::{self, Driver},
    ending,
    lifecycle::ends_with_its_pod,
    memo::{Ended, Memo, Mode, callers_labels},
    trouble::{self, Outlook},
};

/// What made a sandbox, as callers see it.
pub(crate) const NAME: &str = "kubernetes";

/// v1alpha1 calls one that sleeps ready, and only these words tell.
const NO_REPLICAS: &str = "Pod does not exist, replicas is 0";

/// All that is known of one sandbox.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) claim: &'a Claim,
    pub(crate) memo: &'a Memo,
    pub(crate) pod: Option<&'a Pod>,
    /// The container that commands run in, if the template says.
    pub(crate) container: Option<&'a str>,
    /// How this server reaches it, once it has.
    pub(crate) connection: Option<&'a Connection>,
    /// The last end that this server saw.
    pub(crate) last_end: Option<&'a IncarnationEnd>,
    pub(crate) now: SystemTime,
    pub(crate) image_grace: Duration,
}

// === impl Facts ===

impl Facts<'_> {
    /// The sandbox as it is now.
    pub(crate) fn view(&self) -> Sandbox {
        let (claim, memo) = (self.claim, self.memo);
        let meta = &claim.metadata;
        let mut sandbox = Sandbox {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            template: memo.template.clone(),
            created_at: meta.creation_timestamp.as_ref().map(|at| timestamp(unix_ms(at))),
            deadline: memo.deadline_ms.map(timestamp),
            idle_limit: memo.idle_ms.map(|ms| duration(Duration::from_millis(ms))),
            labels: callers_labels(claim).into_iter().collect(),
            etag: etag(claim, memo),
            provider: NAME.to_owned(),
            driver: memo.driver.as_str().to_owned(),
            isolation: self.pod.map(isolation).unwrap_or_default(),
            connection: self.connection.cloned(),
            last_end: self.last_end(),
            ..Sandbox::default()
        };
        if let Some(started) = &memo.started {
            sandbox.capabilities = driver::capabilities(memo.driver, &started.capabilities);
            sandbox.driver_version = started.version.clone();
            sandbox.start = Some(started.report());
            sandbox.enforcement = enforcement(memo.driver, &started.capabilities);
        }
        let (state, message) = self.state();
        sandbox.set_state(state);
        sandbox.state_message = message;
        if matches!(state, SandboxState::Ready | SandboxState::Suspending) && self.is_greeted() {
            sandbox.incarnation = memo
                .started
                .as_ref()
                .map(|started| started.incarnation.clone())
                .unwrap_or_default();
        }
        sandbox
    }

    /// Whether the pod that is there is the one that was greeted, and lives.
    pub(crate) fn is_greeted(&self) -> bool {
        let (Some(started), Some(pod)) = (&self.memo.started, self.pod) else {
            return false;
        };
        pod.metadata.uid.as_deref() == Some(&started.pod_uid)
            && ending::restarts(pod, self.container) == started.restarts
            && !ending::is_finished(pod)
    }

    /// Whether there is a pod that waits to be greeted.
    pub(crate) fn wants_greeting(&self) -> bool {
        let runs = |pod: &Pod| {
            let status = pod.status.as_ref();
            let conditions = status.and_then(|status| status.conditions.as_ref());
            let ready = conditions
                .into_iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            ready && !ending::is_over(pod)
        };
        let conditions = self.claim.status.as_ref().map_or(&[][..], |status| &status.conditions);
        // While the controller still tells of the end of the pod before, the claim must not be told to end with its pod.
        let is_past = is_true(condition(conditions, "Finished"));
        self.claim.metadata.deletion_timestamp.is_none()
            && self.memo.mode != Mode::Suspended
            && !is_past
            && !self.is_asleep()
            && self
                .pod
                .is_some_and(|pod| runs(pod) && self.is_its_own(pod) && !self.was_told_to_end(pod))
            && !self.is_greeted()
    }

    /// Whether the controller has seen that pod as the claim's. One of an earlier claim has the same name.
    fn is_its_own(&self, pod: &Pod) -> bool {
        let known = self
            .claim
            .status
            .as_ref()
            .map_or(&[][..], |status| &status.sandbox.pod_ips);
        let addresses = pod.status.as_ref().and_then(|status| status.pod_ips.as_ref());
        addresses
            .into_iter()
            .flatten()
            .any(|address| known.contains(&address.ip))
    }

    /// Whether what runs in that pod was told to end, for a sandbox that was to sleep.
    pub(crate) fn was_told_to_end(&self, pod: &Pod) -> bool {
        let (Some(started), Some(end)) = (&self.memo.started, &self.memo.last_end) else {
            return false;
        };
        started.incarnation == end.incarnation
            && pod.metadata.uid.as_deref() == Some(&started.pod_uid)
            && ending::restarts(pod, self.container) == started.restarts
    }

    /// Whether the cluster has put it to sleep, or is about to.
    pub(crate) fn is_asleep(&self) -> bool {
        let conditions = self.claim.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "Ready")
            .is_some_and(|ready| ready.reason == "SandboxSuspended" || ready.message.starts_with(NO_REPLICAS))
    }

    pub(crate) fn outlook(&self) -> Outlook {
        // Until it has a node nobody can pull its image.
        let conditions = self.pod.and_then(|pod| pod.status.as_ref()?.conditions.as_ref());
        let mut placed = conditions.into_iter().flatten();
        let placed = placed.find(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
        let placed = placed.and_then(|condition| condition.last_transition_time.as_ref());
        let made = placed.or_else(|| self.pod.and_then(|pod| pod.metadata.creation_timestamp.as_ref()));
        let age = made.map_or(Duration::ZERO, |made| {
            let now = self.now.duration_since(UNIX_EPOCH).unwrap_or_default();
            now.saturating_sub(Duration::from_millis(unix_ms(made)))
        });
        trouble::outlook(self.claim, self.pod, age, self.image_grace)
    }

    fn state(&self) -> (SandboxState, String) {
        use SandboxState as S;
        if self.claim.metadata.deletion_timestamp.is_some() {
            return (S::Deleting, String::new());
        }
        let asleep = self.memo.mode == Mode::Suspended || (self.memo.mode == Mode::Running && self.is_asleep());
        if asleep {
            let state = if self.pod.is_some() {
                S::Suspending
            } else {
                S::Suspended
            };
            return (state, String::new());
        }
        let takes_it_along = self.memo.started.is_some() && ends_with_its_pod(self.claim);
        if self.memo.mode == Mode::Running && takes_it_along && self.pod.is_some_and(ending::is_finished) {
            let end = self.pod.map(|pod| ending::of_pod(pod, self.container).message);
            return (S::Deleting, end.unwrap_or_default());
        }
        let leaves = self.pod.is_some_and(ending::is_over);
        // What is woken is not what was told to end, which may still be there.
        if self.is_greeted() && !leaves && self.memo.mode == Mode::Running {
            return (S::Ready, String::new());
        }
        let state = if self.memo.started.is_some() {
            S::Resuming
        } else {
            S::Creating
        };
        let message = match self.outlook() {
            _ if leaves => "its pod is being replaced".to_owned(),
            _ if self.wants_greeting() => "its pod is ready; connecting to what runs inside".to_owned(),
            Outlook::Waits(what) => what,
            Outlook::Never(why) if state == S::Creating => return (S::Failed, why),
            Outlook::Never(why) => why,
        };
        (state, message)
    }

    fn last_end(&self) -> Option<IncarnationEnd> {
        let current = self.memo.started.as_ref().filter(|_| self.is_greeted());
        let is_over = |end: &&Ended| current.is_none_or(|current| current.incarnation != end.incarnation);
        let noted = self.memo.last_end.as_ref().filter(is_over).map(IncarnationEnd::from);
        let seen = self
            .last_end
            .filter(|end| current.is_none_or(|current| current.incarnation != end.incarnation));
        match (seen, noted) {
            // What all servers can read is told by all of them in the same words.
            (Some(seen), Some(noted)) if noted.incarnation == seen.incarnation || later(&noted, seen) => Some(noted),
            (Some(seen), _) => Some(seen.clone()),
            (None, noted) => noted,
        }
    }
}

fn later(one: &IncarnationEnd, other: &IncarnationEnd) -> bool {
    let at = |end: &IncarnationEnd| end.ended_at.map_or((0, 0), |at| (at.seconds, at.nanos));
    at(one) > at(other)
}

/// Changes with everything that Update can change.
pub(crate) fn etag(claim: &Claim, memo: &Memo) -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    };
    add(claim.metadata.uid.as_deref().unwrap_or_default());
    add(&format!("{:?} {:?}", memo.deadline_ms, memo.idle_ms));
    for (key, value) in callers_labels(claim) {
        add(&key);
        add(&value);
    }
    hash.finalize().iter().take(12).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn unix_ms(time: &Time) -> u64 {
    u64::try_from(time.0.as_millisecond()).unwrap_or_default()
}

pub(crate) fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// What of the pod keeps it apart from its surroundings.
fn isolation(pod: &Pod) -> Vec<IsolationMechanism> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mechanism = |name: &str, in_force: bool, why_not: &str| IsolationMechanism {
        mechanism: name.to_owned(),
        in_force,
        why_not: if in_force { String::new() } else { why_not.to_owned() },
        required: false,
    };
    let security = spec.security_context.as_ref();
    let containers = || {
        spec.containers
            .iter()
            .map(|container| container.security_context.as_ref())
    };
    let seccomp = |profile: Option<&k8s_openapi::api::core::v1::SeccompProfile>| {
        profile.is_some_and(|profile| profile.type_ != "Unconfined")
    };
    let confined = seccomp(security.and_then(|security| security.seccomp_profile.as_ref()))
        || containers().all(|security| seccomp(security.and_then(|security| security.seccomp_profile.as_ref())));
    let non_root = security.and_then(|security| security.run_as_non_root) == Some(true)
        || containers().all(|security| security.and_then(|security| security.run_as_non_root) == Some(true));
    vec![
        mechanism(
            "pod.non_root",
            non_root,
            "the template does not set runAsNonRoot in its securityContext",
        ),
        mechanism(
            "pod.runtime_class",
            spec.runtime_class_name.is_some(),
            "the template names no runtimeClassName, so the sandbox shares its node's kernel with others",
        ),
        mechanism("pod.seccomp", confined, "the template sets no seccompProfile"),
    ]
}

fn enforcement(driver: Driver, capabilities: &[String]) -> Vec<RuleEnforcement> {
    let open = match driver {
        Driver::Runtime if capabilities.iter().any(|name| name == "api.python") => {
            "the python-runtime API is turned on, and has no authentication: whoever reaches the pod's port can use it"
        }
        Driver::Sandboxd | Driver::PythonRuntime => {
            "what runs inside has no authentication: whoever reaches the pod's port can use it"
        }
        Driver::Runtime | Driver::Exec => return Vec::new(),
    };
    vec![RuleEnforcement {
        rule: "runtime.authentication".to_owned(),
        level: EnforcementLevel::None.into(),
        why: open.to_owned(),
    }]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::memo::Started;

    struct Case {
        claim: Claim,
        memo: Memo,
        pod: Option<Pod>,
    }

    impl Case {
        fn new(reason: &str, pod: Option<Value>) -> Self {
            let ready = json!({
                "type": "Ready", "status": "False", "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            Self {
                claim: serde_json::from_value(json!({
                    "metadata": {"name": "a", "uid": "u"}, "spec": {},
                    "status": {"conditions": [ready], "sandbox": {"name": "p", "podIPs": ["10.0.0.1"]}},
                }))
                .unwrap(),
                memo: Memo::default(),
                pod: pod.map(|pod| serde_json::from_value(pod).unwrap()),
            }
        }

        fn started(mut self, pod_uid: &str) -> Self {
            self.memo.started = Some(Started {
                incarnation: format!("in-{pod_uid}"),
                pod_uid: pod_uid.to_owned(),
                ..Started::default()
            });
            self
        }

        fn mode(mut self, mode: Mode) -> Self {
            self.memo.mode = mode;
            self
        }

        fn see<T>(&self, look: impl Fn(&Facts<'_>) -> T) -> T {
            look(&Facts {
                claim: &self.claim,
                memo: &self.memo,
                pod: self.pod.as_ref(),
                container: None,
                connection: None,
                last_end: None,
                now: SystemTime::now(),
                image_grace: Duration::from_secs(60),
            })
        }

        fn state(&self) -> (SandboxState, String) {
            let sandbox = self.see(|facts| facts.view());
            (sandbox.state(), sandbox.incarnation)
        }
    }

    fn pod(uid: &str) -> Value {
        json!({
            "metadata": {"uid": uid, "name": "p"}, "spec": {"containers": [{"name": "main"}]},
            "status": {
                "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": "10.0.0.1"}],
            },
        })
    }

    fn leaving(uid: &str) -> Value {
        let mut pod = pod(uid);
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod
    }

    #[test]
    fn it_is_ready_when_its_own_pod_was_greeted() {
        use SandboxState as S;
        let case = Case::new("DependenciesReady", Some(pod("p1")));
        assert_eq!(case.state(), (S::Creating, String::new()));
        assert!(case.see(|facts| facts.wants_greeting()));
        let case = case.started("p1");
        assert_eq!(case.state(), (S::Ready, "in-p1".to_owned()));
        assert!(!case.see(|facts| facts.wants_greeting()));
    }

    #[test]
    fn a_pod_of_an_earlier_claim_of_the_name_is_not_greeted() {
        let mut earlier = pod("p0");
        earlier["status"]["podIPs"] = json!([{"ip": "10.0.0.9"}]);
        assert!(!Case::new("DependenciesReady", Some(earlier)).see(|facts| facts.wants_greeting()));
    }

    #[test]
    fn a_replaced_pod_is_greeted_anew_and_a_dying_one_never() {
        use SandboxState as S;
        let replaced = Case::new("DependenciesReady", Some(pod("p2"))).started("p1");
        assert_eq!(replaced.state(), (S::Resuming, String::new()));
        assert!(replaced.see(|facts| facts.wants_greeting()));
        let dying = Case::new("DependenciesReady", Some(leaving("p1"))).started("p1");
        assert_eq!(dying.state().0, S::Resuming);
        assert!(!dying.see(|facts| facts.wants_greeting()));
    }

    #[test]
    fn it_sleeps_when_its_pod_is_gone() {
        use SandboxState as S;
        let going = Case::new("SandboxSuspended", Some(leaving("p1")))
            .started("p1")
            .mode(Mode::Suspended);
        assert_eq!(going.state(), (S::Suspending, "in-p1".to_owned()));
        let gone = Case::new("SandboxSuspended", None).started("p1").mode(Mode::Suspended);
        assert_eq!(gone.state(), (S::Suspended, String::new()));
        // Nobody asked us, and it sleeps all the same.
        assert_eq!(
            Case::new("SandboxSuspended", None).started("p1").state().0,
            S::Suspended
        );
        let waking = Case::new("SandboxSuspended", None).started("p1").mode(Mode::Waking);
        assert_eq!(waking.state().0, S::Resuming);
        let mut old = Case::new("DependenciesReady", None).started("p1");
        old.claim.status.as_mut().unwrap().conditions[0].message = format!("{NO_REPLICAS}; Service Exists");
        assert_eq!(old.state().0, S::Suspended);
        // It was woken while what had run was still there.
        let living = Case::new("DependenciesReady", Some(pod("p1")))
            .started("p1")
            .mode(Mode::Waking);
        assert_eq!(living.state().0, S::Resuming);
        let mut finished = pod("p1");
        finished["status"]["phase"] = json!("Succeeded");
        let early = Case::new("SandboxSuspended", Some(finished))
            .started("p1")
            .mode(Mode::Waking);
        assert_eq!(early.state().0, S::Resuming);
        // The controller calls a dying pod ready.
        let hasty = Case::new("DependenciesReady", Some(leaving("p1")))
            .started("p1")
            .mode(Mode::Waking);
        assert_eq!(hasty.state().0, S::Resuming);
        assert!(!hasty.see(|facts| facts.wants_greeting()));
    }

    #[test]
    fn an_etag_changes_with_what_update_changes() {
        let mut case = Case::new("", None);
        let first = case.see(|facts| etag(facts.claim, facts.memo));
        case.memo.mode = Mode::Waking;
        assert_eq!(case.see(|facts| etag(facts.claim, facts.memo)), first);
        case.memo.idle_ms = Some(1);
        let second = case.see(|facts| etag(facts.claim, facts.memo));
        assert_ne!(second, first);
        case.claim.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        assert_ne!(case.see(|facts| etag(facts.claim, facts.memo)), second);
    }
}
