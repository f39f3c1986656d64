//! What this server has seen of the cluster: claims, their pods, templates and pools, as the watches tell. From it the
//! table is made, which is what callers see.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use sandgate_errors::Refusal;
use sandgate_proto::v1::{Connection, EndCause, IncarnationEnd, Sandbox};
use sandgate_provider::{Name, Table, limits::timestamp};
use tokio::sync::Notify;

use crate::{
    api::{Claim, Pool, Template, bound},
    driver::Driver,
    ending::{self, End},
    memo::{Memo, Mode},
    notes::Notes,
    view::{Facts, now_ms, unix_ms},
};

/// Refusals of sandboxes that are gone, for those who still ask.
const KEPT_REFUSALS: usize = 1_000;

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A claim of ours.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) claim: Arc<Claim>,
    pub(crate) memo: Memo,
    connection: Option<Connection>,
    last_end: Option<IncarnationEnd>,
    /// The pod of the incarnation that was greeted, as it was seen last.
    pod: Option<Arc<Pod>>,
}

/// What was seen, and what callers are told of it.
#[derive(Debug)]
pub(crate) struct World {
    known: Mutex<Known>,
    table: Arc<Table>,
    image_grace: Duration,
    /// Sandboxes that something may have to be done for.
    attention: Mutex<BTreeSet<Key>>,
    bell: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    namespaces: Vec<String>,
    claims: BTreeMap<Key, Entry>,
    pods: BTreeMap<Key, Arc<Pod>>,
    pub(crate) templates: BTreeMap<Key, Arc<Template>>,
    pub(crate) pools: BTreeMap<Key, Arc<Pool>>,
    /// Claims by the Sandbox that they have.
    by_sandbox: HashMap<Key, Key>,
    refusals: VecDeque<(String, Refusal)>,
    /// Namespaces whose pods have all been told. Until then one that is missing may still come.
    listed: HashSet<String>,
}

// === impl Key ===

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl Entry ===

impl Entry {
    pub(crate) fn uid(&self) -> &str {
        self.claim.metadata.uid.as_deref().unwrap_or_default()
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

// === impl World ===

impl World {
    pub(crate) fn new(table: Arc<Table>, namespaces: Vec<String>, image_grace: Duration) -> Self {
        let known = Known {
            namespaces,
            ..Known::default()
        };
        Self {
            known: Mutex::new(known),
            table,
            image_grace,
            attention: Mutex::default(),
            bell: Notify::new(),
        }
    }

    fn call_for(&self, key: &Key) {
        self.attention
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.clone());
        self.bell.notify_one();
    }

    /// The next sandbox that something may have to be done for.
    pub(crate) async fn attention(&self) -> Key {
        loop {
            let next = self
                .attention
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_first();
            match next {
                Some(key) => return key,
                None => self.bell.notified().await,
            }
        }
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at one claim with everything that is known about it. `None`: there is no such claim of ours.
    pub(crate) fn look<T>(&self, key: &Key, look: impl FnOnce(&Facts<'_>, &Entry) -> T) -> Option<T> {
        let known = self.known();
        let entry = known.claims.get(key)?;
        Some(look(&known.facts(key, entry, self.image_grace), entry))
    }

    /// The claim that has a sandbox's name, in whatever namespace.
    pub(crate) fn find(&self, name: &Name) -> Option<Key> {
        self.known().named(name.as_str())
    }

    pub(crate) fn put_claim(&self, claim: Claim) {
        let key = Key::of(&claim.metadata);
        let mut known = self.known();
        let Some(memo) = Memo::of(&claim) else {
            return;
        };
        let (mut connection, mut last_end, mut pod) = (None, None, None);
        if let Some(entry) = known.claims.get_mut(&key) {
            // A watch that is behind may still tell of an earlier claim of the name.
            if is_older(&claim.metadata, &entry.claim.metadata) {
                return;
            }
            if entry.claim.metadata.uid == claim.metadata.uid {
                connection = entry.connection.take();
                last_end = entry.last_end.take();
                pod = entry.pod.take();
            } else {
                self.forget(&mut known, &key);
            }
        }
        if let Some(sandbox) = bound(&claim) {
            known.by_sandbox.insert(Key::new(&key.namespace, sandbox), key.clone());
        }
        let entry = Entry {
            claim: Arc::new(claim),
            memo,
            connection,
            last_end,
            pod,
        };
        known.claims.insert(key.clone(), entry);
        self.settle(&mut known, &key);
    }

    pub(crate) fn drop_claim(&self, key: &Key, uid: Option<&str>) {
        let mut known = self.known();
        let is_it = |entry: &Entry| uid.is_none_or(|uid| uid == entry.uid());
        if known.claims.get(key).is_some_and(is_it) {
            self.forget(&mut known, key);
        }
    }

    pub(crate) fn put_pod(&self, pod: Pod) {
        let key = Key::of(&pod.metadata);
        let mut known = self.known();
        known.pods.insert(key.clone(), Arc::new(pod));
        if let Some(claim) = known.by_sandbox.get(&key).cloned() {
            self.settle(&mut known, &claim);
        }
    }

    pub(crate) fn drop_pod(&self, key: &Key) {
        let mut known = self.known();
        known.pods.remove(key);
        if let Some(claim) = known.by_sandbox.get(key).cloned() {
            self.settle(&mut known, &claim);
        }
    }

    /// Claims of a namespace.
    pub(crate) fn claims_of(&self, namespace: &str) -> Vec<Key> {
        keys_of(self.known().claims.keys(), namespace)
    }

    /// Pods of a namespace.
    pub(crate) fn pods_of(&self, namespace: &str) -> Vec<Key> {
        keys_of(self.known().pods.keys(), namespace)
    }

    /// All pods of a namespace have been told.
    pub(crate) fn pods_are_told(&self, namespace: &str) {
        let mut known = self.known();
        if known.listed.insert(namespace.to_owned()) {
            for key in &keys_of(known.claims.keys(), namespace) {
                self.settle(&mut known, key);
            }
        }
    }

    /// How this server reaches a sandbox.
    pub(crate) fn set_connection(&self, key: &Key, uid: &str, connection: Connection) {
        let mut known = self.known();
        if let Some(entry) = known.claims.get_mut(key).filter(|entry| entry.uid() == uid) {
            entry.connection = Some(connection);
            self.settle(&mut known, key);
        }
    }

    /// Why a sandbox was given up, for those who wait for it.
    pub(crate) fn note_refusal(&self, uid: &str, refusal: Refusal) {
        let mut known = self.known();
        known.refusals.push_back((uid.to_owned(), refusal));
        if known.refusals.len() > KEPT_REFUSALS {
            known.refusals.pop_front();
        }
    }

    pub(crate) fn refusal(&self, uid: &str) -> Option<Refusal> {
        let known = self.known();
        let noted = known.refusals.iter().rev();
        noted
            .clone()
            .find(|(of, _)| of == uid)
            .map(|(_, refusal)| refusal.clone())
    }

    /// Something about a claim has changed: notes what ended, tells callers, and calls for whoever looks after it.
    fn settle(&self, known: &mut Known, key: &Key) {
        if known.listed.contains(&key.namespace) {
            known.witness(key);
        }
        let Some(entry) = known.claims.get(key) else {
            return;
        };
        if known.named(&key.name).as_ref() != Some(key) {
            return;
        }
        let sandbox = known.facts(key, entry, self.image_grace).view();
        self.publish(sandbox);
        self.call_for(key);
    }

    fn publish(&self, sandbox: Sandbox) {
        let before = self.table.get(&sandbox.name);
        if let Some(before) = &before {
            if **before == sandbox {
                return;
            }
            if before.uid != sandbox.uid {
                let message = "another one of the same name was made earlier in another namespace";
                self.table
                    .remove(&before.name, &before.uid, EndCause::Unspecified, message);
            }
        }
        self.table.put(sandbox);
    }

    fn forget(&self, known: &mut Known, key: &Key) {
        known.witness(key);
        let Some(entry) = known.claims.remove(key) else {
            return;
        };
        if let Some(sandbox) = bound(&entry.claim) {
            known.by_sandbox.remove(&Key::new(&key.namespace, sandbox));
        }
        self.call_for(key);
        let End { cause, message } = final_end(&entry);
        self.table.remove(&key.name, entry.uid(), cause, message);
        // One of the same name in another namespace was hidden by it.
        if let Some(other) = known.named(&key.name) {
            self.settle(known, &other);
        }
    }
}

pub(crate) fn keys_of<'a>(keys: impl Iterator<Item = &'a Key>, namespace: &str) -> Vec<Key> {
    keys.filter(|key| key.namespace == namespace).cloned().collect()
}

/// Why a claim is gone.
fn final_end(entry: &Entry) -> End {
    let last = entry.last_end.as_ref();
    let told = last.filter(|end| {
        use EndCause as C;
        matches!(
            end.cause(),
            C::Deadline | C::Idle | C::OutOfMemory | C::Evicted | C::Crashed | C::MachineLost
        )
    });
    // One that was suspended or replaced went on after that.
    if let Some(end) = told.filter(|_| entry.memo.mode == Mode::Running) {
        return End {
            cause: end.cause(),
            message: end.message.clone(),
        };
    }
    let now = now_ms();
    let ends = entry
        .claim
        .spec
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.shutdown_time.as_ref());
    let lease_is_over = entry.memo.driver != Driver::Runtime && ends.is_some_and(|ends| unix_ms(ends) <= now);
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

/// Whether one state is older than another. Versions of one kind of object are numbers that rise.
fn is_older(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    let version = |meta: &ObjectMeta| {
        meta.resource_version
            .as_deref()
            .and_then(|version| version.parse::<u64>().ok())
    };
    matches!((version(one), version(other)), (Some(one), Some(other)) if one < other)
}

// === impl Known ===

impl Known {
    fn named(&self, name: &str) -> Option<Key> {
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

    fn facts<'a>(&'a self, key: &Key, entry: &'a Entry, image_grace: Duration) -> Facts<'a> {
        Facts {
            claim: &entry.claim,
            memo: &entry.memo,
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
    fn witness(&mut self, key: &Key) {
        let Some(entry) = self.claims.get(key) else {
            return;
        };
        let Some(started) = &entry.memo.started else {
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

/// A template as callers name it may have its namespace before it.
pub(crate) fn template_name(text: &str) -> &str {
    text.rsplit_once('/').map_or(text, |(_, name)| name)
}
