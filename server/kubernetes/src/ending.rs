//! Why an incarnation ended, as far as its pod tells.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use sandgate_proto::v1::EndCause;

/// How what ran in a pod ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) cause: EndCause,
    pub(crate) message: String,
}

/// The container that commands run in.
pub(crate) fn main_container<'a>(pod: &'a Pod, name: Option<&str>) -> Option<&'a ContainerStatus> {
    let first = pod.spec.as_ref()?.containers.first()?.name.as_str();
    let name = name.unwrap_or(first);
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == name)
}

/// How often the container was started before.
pub(crate) fn restarts(pod: &Pod, container: Option<&str>) -> i32 {
    main_container(pod, container).map_or(0, |status| status.restart_count)
}

/// Whether nothing runs in it any more, or soon will not.
pub(crate) fn is_over(pod: &Pod) -> bool {
    is_deleted(pod) || is_finished(pod)
}

/// Whether somebody has told it to go.
pub(crate) fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether all its containers have ended for good.
pub(crate) fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Why what runs in a pod has ended, or is about to.
pub(crate) fn of_pod(pod: &Pod, container: Option<&str>) -> End {
    let ended = main_container(pod, container).and_then(terminated);
    // Our runtime's last word, where it could say one.
    let word = ended.and_then(|ended| ended.message.as_deref()).unwrap_or("").trim();
    let of = |cause, message: &str| End {
        cause,
        message: message.to_owned(),
    };
    match word {
        "deadline" => return of(EndCause::Deadline, "its deadline was reached"),
        "idle" => return of(EndCause::Idle, "its idle limit was reached"),
        _ => {}
    }
    if ended.is_some_and(|ended| ended.reason.as_deref() == Some("OOMKilled")) {
        return of(EndCause::OutOfMemory, "it was killed for want of memory");
    }
    if let Some(end) = disruption(pod) {
        return end;
    }
    if is_deleted(pod) {
        return of(EndCause::Deleted, "its pod was deleted");
    }
    match ended {
        Some(_) if word == "stopped" => of(EndCause::Deleted, "it was told to end"),
        // Nobody but its kubelet ends a pod that is not deleted. Why, it tells only of those that then fail: what ends well
        // when it is told to has succeeded, without a reason or a condition (Kubernetes 1.34).
        Some(_) if word == "signal" => of(
            EndCause::Evicted,
            "its node ended it, for want of room or for something more important",
        ),
        Some(ended) => End {
            cause: EndCause::Crashed,
            message: match (ended.signal, ended.exit_code) {
                (Some(signal), _) => format!("what runs inside was killed by signal {signal}"),
                (None, code) => format!("what runs inside ended with code {code}"),
            },
        },
        None => of(EndCause::Unspecified, "its pod is gone"),
    }
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let now = status.state.as_ref().and_then(|state| state.terminated.as_ref());
    // A container that was started again tells of its end there.
    now.or_else(|| status.last_state.as_ref().and_then(|state| state.terminated.as_ref()))
}

/// The cluster took it off its node.
fn disruption(pod: &Pod) -> Option<End> {
    let status = pod.status.as_ref()?;
    let target = status.conditions.iter().flatten();
    let target = target
        .filter(|condition| condition.type_ == "DisruptionTarget" && condition.status == "True")
        .find_map(|condition| condition.reason.as_deref());
    let reason = target.or(status.reason.as_deref())?;
    let cause = match reason {
        "EvictionByEvictionAPI"
        | "PreemptionByScheduler"
        | "DeletionByTaintManager"
        | "TerminationByKubelet"
        | "Evicted"
        | "Preempting" => EndCause::Evicted,
        "DeletionByPodGC" | "NodeLost" | "NodeShutdown" | "Terminated" | "Shutdown" | "NodeAffinity" => {
            EndCause::MachineLost
        }
        _ => return None,
    };
    let said = status.message.as_deref().unwrap_or("");
    let message = match cause {
        EndCause::MachineLost => format!("its node was lost or shut down ({reason}) {said}"),
        _ => format!("the cluster took it off its node ({reason}) {said}"),
    };
    Some(End {
        cause,
        message: message.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value, deleted: bool) -> Pod {
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "main"}]}, "status": status});
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    }

    fn ended(terminated: Value) -> Value {
        json!([{"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": terminated}}])
    }

    #[test]
    fn the_last_word_of_the_runtime_counts_first() {
        for (word, cause) in [("deadline", EndCause::Deadline), ("idle\n", EndCause::Idle)] {
            let status =
                json!({"phase": "Succeeded", "containerStatuses": ended(json!({"exitCode": 0, "message": word}))});
            assert_eq!(of_pod(&pod(status.clone(), false), None).cause, cause);
            assert_eq!(of_pod(&pod(status, true), None).cause, cause);
        }
    }

    #[test]
    fn each_way_to_end_is_told_apart() {
        let oom = json!({"containerStatuses": ended(json!({"exitCode": 137, "reason": "OOMKilled"}))});
        assert_eq!(of_pod(&pod(oom, false), None).cause, EndCause::OutOfMemory);
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"});
        let end = of_pod(&pod(evicted, false), None);
        assert_eq!(end.cause, EndCause::Evicted);
        assert!(end.message.ends_with("low on memory"), "{}", end.message);
        let api = json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}],
            "containerStatuses": ended(json!({"exitCode": 0, "message": "signal"}))});
        assert_eq!(of_pod(&pod(api, true), None).cause, EndCause::Evicted);
        let killed = json!({"containerStatuses": ended(json!({"exitCode": 137, "reason": "Error"}))});
        assert_eq!(of_pod(&pod(killed, false), None).cause, EndCause::Crashed);
        let deleted = json!({"containerStatuses": ended(json!({"exitCode": 0, "message": "signal"}))});
        assert_eq!(of_pod(&pod(deleted, true), None).cause, EndCause::Deleted);
        let by_its_node =
            json!({"phase": "Succeeded", "containerStatuses": ended(json!({"exitCode": 0, "message": "signal"}))});
        assert_eq!(of_pod(&pod(by_its_node, false), None).cause, EndCause::Evicted);
        let lost = json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]});
        assert_eq!(of_pod(&pod(lost, true), None).cause, EndCause::MachineLost);
    }

    #[test]
    fn a_container_that_was_started_again_tells_of_its_last_end() {
        let status = json!({"phase": "Running", "containerStatuses": [{
            "name": "main", "image": "", "imageID": "", "ready": true, "restartCount": 1,
            "state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1, "reason": "OOMKilled"}},
        }]});
        let pod = pod(status, false);
        assert_eq!((restarts(&pod, None), restarts(&pod, Some("other"))), (1, 0));
        assert_eq!(of_pod(&pod, None).cause, EndCause::OutOfMemory);
    }
}
