//! What this server has seen of the cluster: claims, their pods, templates and pools, as the watches tell. From it the
//! table is made, which is what callers see.

mod known;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use sandgate_errors::Refusal;
use sandgate_proto::v1::{Connection, EndCause, Sandbox};
use sandgate_provider::{Name, Table};
use tokio::sync::Notify;

use self::known::final_end;
pub(crate) use self::known::{Entry, Known, template_name};
use crate::{
    api::{Claim, bound},
    ending::End,
    memo::{Memo, Started},
    view::Facts,
};

/// Refusals of sandboxes that are gone, for those who still ask.
const KEPT_REFUSALS: usize = 1_000;

/// Where an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
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

    /// A claim as the watch tells of it, which knows what is gone.
    pub(crate) fn put_watched_claim(&self, claim: Claim) {
        self.known()
            .gone
            .forget(claim.metadata.uid.as_deref().unwrap_or_default());
        self.put_claim(claim);
    }

    /// A claim as somebody has read it, who may have been overtaken by the watch.
    pub(crate) fn put_claim(&self, claim: Claim) {
        let key = Key::of(&claim.metadata);
        let mut known = self.known();
        let Some(memo) = Memo::of(&claim) else {
            return;
        };
        if known.gone.has(claim.metadata.uid.as_deref().unwrap_or_default()) {
            return;
        }
        let (mut connection, mut last_end, mut pod, mut unwritten) = (None, None, None, None);
        if let Some(entry) = known.claims.get_mut(&key) {
            // A watch that is behind may still tell of an earlier claim of the name.
            if is_older(&claim.metadata, &entry.claim.metadata) {
                return;
            }
            if entry.claim.metadata.uid == claim.metadata.uid {
                connection = entry.connection.take();
                last_end = entry.last_end.take();
                pod = entry.pod.take();
                unwritten = entry.unwritten.take().and_then(|told| memo.with_start(told.started?));
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
            unwritten,
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

    /// A claim has been started for the first time, which is to be written down.
    pub(crate) fn note_start(&self, key: &Key, uid: &str, start: impl FnOnce(&Claim, &Memo) -> Started) {
        let mut known = self.known();
        let Some(entry) = known.claims.get_mut(key).filter(|entry| entry.uid() == uid) else {
            return;
        };
        let started = start(&entry.claim, &entry.memo);
        entry.unwritten = entry.memo.with_start(started);
        self.settle(&mut known, key);
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
        known.gone.add(entry.uid().to_owned());
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

/// Whether one state is older than another. Versions of one kind of object are numbers that rise.
fn is_older(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    let version = |meta: &ObjectMeta| {
        meta.resource_version
            .as_deref()
            .and_then(|version| version.parse::<u64>().ok())
    };
    matches!((version(one), version(other)), (Some(one), Some(other)) if one < other)
}
