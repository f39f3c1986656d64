//! What the watches have told, put together: a claim with its pod and its template.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use k8s_openapi::api::core::v1::Pod;
use sandgate_errors::Refusal;
use sandgate_proto::v1::{Connection, EndCause, IncarnationEnd};
use sandgate_provider::limits::timestamp;

use super::Key;
use crate::{
    api::{Claim, Pool, Template, bound},
    driver::Driver,
    ending::{self, End},
    lifecycle::ends_ms,
    memo::{Memo, Mode},
    notes::Notes,
    view::{Facts, now_ms},
};

/// Claims that are gone. Whoever has read one before it went does not take longer to tell than this many go.
const KEPT_GONE: usize = 10_000;

/// A claim of ours.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) claim: Arc<Claim>,
    /// As it is written there.
    pub(crate) memo: Memo,
    /// The same with a first start that this server has seen through and has not written down yet.
    pub(super) unwritten: Option<Memo>,
    pub(super) connection: Option<Connection>,
    pub(super) last_end: Option<IncarnationEnd>,
    /// The pod of the incarnation that was greeted, as it was seen last.
    pub(super) pod: Option<Arc<Pod>>,
}

/// All that is there.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(super) namespaces: Vec<String>,
    pub(super) claims: BTreeMap<Key, Entry>,
    pub(super) pods: BTreeMap<Key, Arc<Pod>>,
    pub(crate) templates: BTreeMap<Key, Arc<Template>>,
    pub(crate) pools: BTreeMap<Key, Arc<Pool>>,
    /// Claims by the Sandbox that they have.
    pub(super) by_sandbox: HashMap<Key, Key>,
    /// Uids of claims that are gone, for those who read them a moment before.
    pub(super) gone: Gone,
    pub(super) refusals: VecDeque<(String, Refusal)>,
    /// Namespaces whose pods have all been told. Until then one that is missing may still come.
    pub(super) listed: HashSet<String>,
}

/// The last uids that are no more.
#[derive(Debug, Default)]
pub(super) struct Gone {
    uids: HashSet<String>,
    order: VecDeque<String>,
}

// === impl Entry ===

impl Entry {
    pub(crate) fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    /// As it is told to callers.
    pub(crate) fn told(&self) -> &Memo {
        self.unwritten.as_ref().unwrap_or(&self.memo)
    }

    pub(crate) fn has_unwritten_start(&self) -> bool {
        self.unwritten.is_some()
    }

    /// Made earlier than another one. Of two claims of one name in two namespaces the earlier is the sandbox.
    fn is_before(&self, other: &Self) -> bool {
        let age = |entry: &Self| {
            let made = entry.claim.metadata.creation_timestamp.as_ref().map(|at| at.0);
            (made, entry.uid().to_owned())
        };
        age(self) < age(other)
    }
}

// === impl Known ===

impl Known {
    pub(super) fn named(&self, name: &str) -> Option<Key> {
        let keys = self.namespaces.iter().map(|namespace| Key::new(namespace, name));
        let of_name = keys.filter_map(|key| self.claims.get(&key).map(|entry| (key, entry)));
        let first = of_name.reduce(|first, other| if other.1.is_before(first.1) { other } else { first });
        first.map(|(key, _)| key)
    }

    /// The pod that a claim has now.
    fn pod(&self, key: &Key, entry: &Entry) -> Option<&Arc<Pod>> {
        self.pods.get(&Key::new(&key.namespace, bound(&entry.claim)?))
    }

    pub(crate) fn template(&self, namespace: &str, name: &str) -> Option<&Arc<Template>> {
        self.templates.get(&Key::new(namespace, name))
    }

    fn container(&self, key: &Key, entry: &Entry) -> Option<&str> {
        let template = self.template(&key.namespace, template_name(&entry.memo.template))?;
        Notes::container(template)
    }

    pub(super) fn facts<'a>(&'a self, key: &Key, entry: &'a Entry, image_grace: Duration) -> Facts<'a> {
        Facts {
            claim: &entry.claim,
            memo: entry.told(),
            pod: self.pod(key, entry).map(|pod| &**pod),
            container: self.container(key, entry),
            connection: entry.connection.as_ref(),
            last_end: entry.last_end.as_ref(),
            now: SystemTime::now(),
            image_grace,
        }
    }

    /// Notes how the incarnation that was greeted last has ended, once it has. What a pod says of its end comes in
    /// pieces, so it is looked at until the pod is gone.
    pub(super) fn witness(&mut self, key: &Key) {
        let Some(entry) = self.claims.get(key) else {
            return;
        };
        let Some(started) = &entry.told().started else {
            return;
        };
        let container = self.container(key, entry).map(str::to_owned);
        let now = self.pod(key, entry).cloned();
        let is_its = |pod: &Pod| pod.metadata.uid.as_deref() == Some(&started.pod_uid);
        let (pod, gone) = match (now, &entry.pod) {
            (Some(pod), _) if is_its(&pod) => (Some(pod), false),
            (_, seen) => (seen.clone().filter(|pod| is_its(pod)), true),
        };
        let over = pod
            .as_deref()
            .is_none_or(|pod| ending::is_over(pod) || ending::restarts(pod, container.as_deref()) > started.restarts);
        let incarnation = started.incarnation.clone();
        let suspended = entry.memo.mode != Mode::Running;
        let ended = (over || gone).then(|| {
            let end = pod.as_deref().map(|pod| ending::of_pod(pod, container.as_deref()));
            let end = end.filter(|end| !suspended || matches!(end.cause, EndCause::Deadline | EndCause::Idle));
            end.unwrap_or_else(|| End {
                cause: if suspended {
                    EndCause::Suspended
                } else {
                    EndCause::Unspecified
                },
                message: if suspended {
                    "it was suspended"
                } else {
                    "its pod is gone"
                }
                .to_owned(),
            })
        });
        let Some(entry) = self.claims.get_mut(key) else {
            return;
        };
        entry.pod = pod;
        let Some(End { cause, message }) = ended else {
            return;
        };
        let before = entry.last_end.as_ref().filter(|end| end.incarnation == incarnation);
        // Once its pod is gone nothing better will be known. What had ended before its pod was deleted did not end by that.
        let is_last = gone || cause == EndCause::Deleted;
        if before.is_some_and(|before| is_last && before.cause() != EndCause::Unspecified) {
            return;
        }
        let ended_at = before.and_then(|before| before.ended_at);
        entry.last_end = Some(IncarnationEnd {
            incarnation,
            cause: cause.into(),
            message,
            ended_at: ended_at.or_else(|| Some(timestamp(now_ms()))),
        });
    }
}

// === impl Gone ===

impl Gone {
    pub(super) fn add(&mut self, uid: String) {
        if self.uids.insert(uid.clone()) {
            self.order.push_back(uid);
        }
        if self.order.len() > KEPT_GONE
            && let Some(oldest) = self.order.pop_front()
        {
            self.uids.remove(&oldest);
        }
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.uids.remove(uid);
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.uids.contains(uid)
    }
}

/// Why a claim is gone.
pub(super) fn final_end(entry: &Entry) -> End {
    let last = entry.last_end.as_ref();
    let told = last.filter(|end| {
        use EndCause as C;
        matches!(
            end.cause(),
            C::Deadline | C::Idle | C::OutOfMemory | C::Evicted | C::Crashed | C::MachineLost
        )
    });
    // One that was suspended or replaced went on after that.
    let started = entry.told().started.as_ref();
    let is_last = |end: &&IncarnationEnd| started.is_some_and(|started| started.incarnation == end.incarnation);
    if let Some(end) = told.filter(is_last).filter(|_| entry.memo.mode == Mode::Running) {
        return End {
            cause: end.cause(),
            message: end.message.clone(),
        };
    }
    let now = now_ms();
    let is_over = ends_ms(&entry.claim).is_some_and(|ends| ends <= now);
    let lease_is_over = entry.memo.driver != Driver::Runtime && is_over;
    let (cause, message) = if entry.memo.deadline_ms.is_some_and(|deadline| deadline <= now) {
        (EndCause::Deadline, "its deadline was reached")
    } else if lease_is_over {
        (EndCause::Idle, "its idle limit was reached")
    } else {
        (EndCause::Deleted, "its claim was deleted")
    };
    End {
        cause,
        message: message.to_owned(),
    }
}

/// A template as callers name it may have its namespace before it.
pub(crate) fn template_name(text: &str) -> &str {
    text.rsplit_once('/').map_or(text, |(_, name)| name)
}
