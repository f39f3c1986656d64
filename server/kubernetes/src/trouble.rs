//! Why a claim is not ready, and whether it ever can be. A claim's status does not say why its pod fails, so both are
//! looked at.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;

use crate::api::{Claim, condition};

/// How it looks for a claim that is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outlook {
    /// Nothing is wrong. It takes its time, with this.
    Waits(String),
    /// It can never become ready: why, and what to do.
    Never(String),
}

/// Reasons of the claim's condition that stay, and what to do about each.
const NEVER: &[(&str, &str)] = &[
    ("InvalidMetadata", "the cluster refuses metadata of the claim"),
    (
        "EnvVarsInjectionRejected",
        "the template permits no environment: set envVarsInjectionPolicy in the SandboxTemplate, or give none",
    ),
    (
        "VolumeClaimTemplatesError",
        "the template does not permit these volumes: see volumeClaimTemplatesPolicy in the SandboxTemplate",
    ),
    ("InvalidConfiguration", "the SandboxTemplate makes no valid pod"),
    ("PodFailed", "its pod failed"),
    ("PodSucceeded", "its pod ended by itself"),
    ("SandboxExpired", "its Sandbox expired before it was ready"),
    ("ClaimExpired", "its claim expired before it was ready"),
];

/// What errors of the controller stay, by their words: it has no reasons for them.
const NEVER_WORDS: &[(&str, &str)] = &[
    (
        "metadata override conflict",
        "the template sets a label or annotation to another value",
    ),
    (
        "environment variable injection is not allowed",
        "the template permits no environment: set envVarsInjectionPolicy in the SandboxTemplate, or give none",
    ),
    (
        "environment variable override is not allowed",
        "the template does not let this variable be changed",
    ),
    ("target container", "the template has no container of that name"),
    (
        "violates PodSecurity",
        "the namespace's pod security refuses the template's pod",
    ),
];

/// What keeps a container from starting and rarely goes away; it gets some time all the same.
const STUCK: &[(&str, &str)] = &[
    ("ErrImagePull", "the image can't be pulled"),
    ("ImagePullBackOff", "the image can't be pulled"),
    (
        "ErrImageNeverPull",
        "the image is not on the node and may not be pulled",
    ),
    ("InvalidImageName", "the image's name is not valid"),
    (
        "CreateContainerConfigError",
        "the container's configuration names something that is not there",
    ),
    ("CreateContainerError", "the container can't be created"),
    ("RunContainerError", "the container can't be started"),
    ("CrashLoopBackOff", "the container ends again and again"),
];

/// Looks at a claim that is not ready, and its pod. `age` is how long the pod has been there.
pub(crate) fn outlook(claim: &Claim, pod: Option<&Pod>, age: Duration, grace: Duration) -> Outlook {
    let conditions = claim.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let ready = condition(conditions, "Ready");
    let (reason, message) = ready.map_or(("", ""), |ready| (ready.reason.as_str(), ready.message.as_str()));
    // In v1alpha1 only this one has the end of a pod.
    let finished = condition(conditions, "Finished").filter(|finished| finished.status == "True");
    let ended = finished.map_or("", |finished| finished.reason.as_str());
    if let Some((_, what)) = NEVER.iter().find(|(known, _)| *known == reason || *known == ended) {
        let why = pod.and_then(last_words).unwrap_or_else(|| message.to_owned());
        return Outlook::Never(format!("{what}: {why}"));
    }
    if let Some((_, what)) = NEVER_WORDS.iter().find(|(words, _)| message.contains(words)) {
        return Outlook::Never(format!("{what}: {message}"));
    }
    if let Some((name, waiting)) = pod.and_then(stuck) {
        let (_, what) = waiting;
        let text = format!("{what} ({name})");
        if age >= grace {
            return Outlook::Never(text);
        }
        return Outlook::Waits(text);
    }
    if let Some(message) = pod.and_then(unschedulable) {
        return Outlook::Waits(format!("no node has room for its pod: {message}"));
    }
    Outlook::Waits(match (reason, message) {
        (_, message) if message.contains("exceeded quota") => {
            format!("the namespace's quota is used up: {message}")
        }
        ("WarmPoolNotFound" | "TemplateNotFound", message) => format!("{message}; waiting for it to be made"),
        ("", _) => "the controller has not looked at the claim yet".to_owned(),
        (_, "") => "its sandbox is being made".to_owned(),
        // Garbage of an earlier one of the same name, which goes away.
        (_, message) if message.contains("not controlled by claim") => {
            "an earlier sandbox of the same name is still being removed".to_owned()
        }
        (_, message) => message.to_owned(),
    })
}

/// The refusal for what can never be ready.
pub(crate) fn refusal(name: &str, why: &str) -> Refusal {
    Refusal::new(
        ErrorReason::SandboxFailed,
        format!("sandbox {name} can never become ready: {why}"),
    )
}

fn stuck(pod: &Pod) -> Option<(String, &'static (&'static str, &'static str))> {
    statuses(pod).find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let known = STUCK.iter().find(|(known, _)| *known == reason)?;
        let message = waiting.message.as_deref().unwrap_or(reason);
        Some((
            format!("container {}, image {}: {message}", status.name, status.image),
            known,
        ))
    })
}

fn unschedulable(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.status == "False").then(|| scheduled.message.clone().unwrap_or_default())
}

/// What the first container that failed left behind.
fn last_words(pod: &Pod) -> Option<String> {
    if let Some(message) = pod.status.as_ref().and_then(|status| status.message.clone()) {
        return Some(message);
    }
    statuses(pod).find_map(|status| {
        let ended = status.state.as_ref()?.terminated.as_ref()?;
        let reason = ended.reason.as_deref().unwrap_or("ended");
        let message = ended.message.as_deref().unwrap_or("").trim();
        Some(
            format!(
                "container {} {reason} with code {} {message}",
                status.name, ended.exit_code
            )
            .trim()
            .to_owned(),
        )
    })
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let first = status.and_then(|status| status.init_container_statuses.as_ref());
    let then = status.and_then(|status| status.container_statuses.as_ref());
    first.into_iter().chain(then).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GRACE: Duration = Duration::from_secs(60);

    fn claim(reason: &str, message: &str) -> Claim {
        let ready = json!({
            "type": "Ready", "status": "False", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(json!({
            "metadata": {"name": "a"}, "spec": {}, "status": {"conditions": [ready]},
        }))
        .unwrap()
    }

    fn waiting(reason: &str) -> Pod {
        serde_json::from_value(json!({"status": {"containerStatuses": [{
            "name": "main", "image": "img", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": "because"}},
        }]}}))
        .unwrap()
    }

    fn never(outlook: Outlook) -> String {
        match outlook {
            Outlook::Never(why) => why,
            Outlook::Waits(why) => panic!("was taken for something to wait for: {why}"),
        }
    }

    fn waits(outlook: Outlook) -> String {
        match outlook {
            Outlook::Waits(why) => why,
            Outlook::Never(why) => panic!("was given up: {why}"),
        }
    }

    #[test]
    fn what_the_controller_will_not_try_again_is_given_up_at_once() {
        for (reason, _) in NEVER {
            let why = never(outlook(&claim(reason, "words"), None, Duration::ZERO, GRACE));
            assert!(why.ends_with(": words"), "{why}");
        }
        let mut ended = claim("DependenciesNotReady", "Pod exists with phase: Failed");
        let status = ended.status.as_mut().unwrap();
        status
            .conditions
            .extend(claim("PodFailed", "").status.unwrap().conditions);
        status.conditions[1].type_ = "Finished".to_owned();
        assert!(matches!(
            outlook(&ended, None, Duration::ZERO, GRACE),
            Outlook::Waits(_)
        ));
        ended.status.as_mut().unwrap().conditions[1].status = "True".to_owned();
        assert!(never(outlook(&ended, None, Duration::ZERO, GRACE)).starts_with("its pod failed"));
        let conflict = "Error seen: metadata override conflict: label \"a\" is defined in template with value";
        never(outlook(
            &claim("ReconcilerError", conflict),
            None,
            Duration::ZERO,
            GRACE,
        ));
    }

    #[test]
    fn what_may_still_come_is_waited_for_and_named() {
        let quota = "Error seen: pods \"a\" is forbidden: exceeded quota: q";
        assert!(
            waits(outlook(&claim("ReconcilerError", quota), None, GRACE, GRACE)).starts_with("the namespace's quota")
        );
        let garbage = "Error seen: sandbox a is not controlled by claim a";
        assert!(waits(outlook(&claim("ReconcilerError", garbage), None, GRACE, GRACE)).contains("still being removed"));
        assert!(waits(outlook(&claim("WarmPoolNotFound", "no pool"), None, GRACE, GRACE)).starts_with("no pool"));
        let pod: Pod = serde_json::from_value(json!({"status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"},
        ]}}))
        .unwrap();
        let why = waits(outlook(
            &claim("DependenciesNotReady", "Pod exists with phase: Pending"),
            Some(&pod),
            GRACE,
            GRACE,
        ));
        assert_eq!(why, "no node has room for its pod: 0/1 nodes");
    }

    #[test]
    fn an_image_gets_its_time() {
        for (reason, what) in STUCK {
            let (claim, pod) = (
                claim("DependenciesNotReady", "Pod exists with phase: Pending"),
                waiting(reason),
            );
            let why = waits(outlook(&claim, Some(&pod), GRACE / 2, GRACE));
            assert!(why.starts_with(what) && why.contains("because"), "{why}");
            assert_eq!(never(outlook(&claim, Some(&pod), GRACE, GRACE)), why);
        }
    }
}
