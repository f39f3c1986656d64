//! The watches: one for each kind of object and namespace, shared by every call. Nothing polls.

use std::{collections::BTreeSet, fmt::Debug, future::Future, sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    api::{Claim, POD_LABEL, Pool, Resources, Template},
    memo::{MANAGED_BY, MANAGER},
    world::{Key, World, keys_of},
};

/// The API server ends a watch after this long; then it is opened again where it was.
const WATCH_SECONDS: u32 = 290;

/// Watches that run until this is dropped.
#[derive(Debug)]
pub(crate) struct Watches {
    tasks: JoinSet<()>,
    /// How many have not seen a whole list yet.
    missing: watch::Receiver<usize>,
}

// === impl Watches ===

impl Watches {
    pub(crate) fn start(client: &Client, resources: &Resources, namespaces: &[String], world: &Arc<World>) -> Self {
        let mut tasks = JoinSet::new();
        let (count, missing) = watch::channel(4 * namespaces.len());
        let count = Arc::new(count);
        for namespace in namespaces {
            let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={MANAGER}"));
            let claims: Api<Claim> = Api::namespaced_with(client.clone(), namespace, &resources.claims);
            tasks.spawn(follow(
                claims,
                ours,
                namespace.clone(),
                Sink::claims(world),
                Arc::clone(&count),
            ));

            let of_sandboxes = watcher::Config::default().labels(POD_LABEL);
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            tasks.spawn(follow(
                pods,
                of_sandboxes,
                namespace.clone(),
                Sink::pods(world),
                Arc::clone(&count),
            ));

            let templates: Api<Template> = Api::namespaced_with(client.clone(), namespace, &resources.templates);
            let all = watcher::Config::default;
            tasks.spawn(follow(
                templates,
                all(),
                namespace.clone(),
                Sink::templates(world),
                Arc::clone(&count),
            ));

            let pools: Api<Pool> = Api::namespaced_with(client.clone(), namespace, &resources.pools);
            tasks.spawn(follow(
                pools,
                all(),
                namespace.clone(),
                Sink::pools(world),
                Arc::clone(&count),
            ));
        }
        Self { tasks, missing }
    }

    /// Waits until everything that is there has been seen once.
    pub(crate) fn seen(&self) -> impl Future<Output = ()> + use<> {
        let mut missing = self.missing.clone();
        async move { drop(missing.wait_for(|missing| *missing == 0).await) }
    }

    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Where objects of a kind go.
struct Sink<K> {
    put: Box<dyn Fn(K) + Send + Sync>,
    drop: Box<dyn Fn(K) + Send + Sync>,
    /// Those of a namespace that are known.
    known: Box<KeysOf>,
    /// A fresh list of a namespace is whole. These were known before it, and are not in it.
    listed: Box<Listed>,
}

type KeysOf = dyn Fn(&str) -> Vec<Key> + Send + Sync;
type Listed = dyn Fn(&str, &[Key]) + Send + Sync;

async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    namespace: String,
    sink: Sink<K>,
    missing: Arc<watch::Sender<usize>>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = watcher(api, config.timeout(WATCH_SECONDS)).default_backoff().boxed();
    // What is made while a list is under way need not be in it.
    let mut before = BTreeSet::new();
    let mut seen = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => before = (sink.known)(&namespace).into_iter().collect(),
            Ok(Event::InitApply(object)) => {
                before.remove(&Key::of(object.meta()));
                (sink.put)(object);
            }
            Ok(Event::InitDone) => {
                let gone: Vec<Key> = std::mem::take(&mut before).into_iter().collect();
                (sink.listed)(&namespace, &gone);
                if !std::mem::replace(&mut seen, true) {
                    missing.send_modify(|missing| *missing -= 1);
                }
            }
            Ok(Event::Apply(object)) => (sink.put)(object),
            Ok(Event::Delete(object)) => (sink.drop)(object),
            // It goes on by itself, after a pause.
            Err(error) => tracing::warn!(namespace, %error, "a watch was lost"),
        }
    }
}

// === impl Sink ===

impl Sink<Claim> {
    fn claims(world: &Arc<World>) -> Self {
        let [put, drop, known, listed] = std::array::from_fn(|_| Arc::clone(world));
        Self {
            put: Box::new(move |claim| put.put_watched_claim(claim)),
            drop: Box::new(move |claim| {
                // Its last state tells how it ended.
                let (key, uid) = (Key::of(&claim.metadata), claim.metadata.uid.clone());
                drop.put_watched_claim(claim);
                drop.drop_claim(&key, uid.as_deref());
            }),
            known: Box::new(move |namespace| known.claims_of(namespace)),
            listed: Box::new(move |_, gone| {
                for key in gone {
                    listed.drop_claim(key, None);
                }
            }),
        }
    }
}

impl Sink<Pod> {
    fn pods(world: &Arc<World>) -> Self {
        let [put, drop, known, listed] = std::array::from_fn(|_| Arc::clone(world));
        Self {
            put: Box::new(move |pod| put.put_pod(pod)),
            drop: Box::new(move |pod| {
                let key = Key::of(&pod.metadata);
                drop.put_pod(pod);
                drop.drop_pod(&key);
            }),
            known: Box::new(move |namespace| known.pods_of(namespace)),
            listed: Box::new(move |namespace, gone| {
                for key in gone {
                    listed.drop_pod(key);
                }
                listed.pods_are_told(namespace);
            }),
        }
    }
}

impl Sink<Template> {
    fn templates(world: &Arc<World>) -> Self {
        let [put, drop, known, listed] = std::array::from_fn(|_| Arc::clone(world));
        Self {
            put: Box::new(move |object| {
                put.known()
                    .templates
                    .insert(Key::of(&object.metadata), Arc::new(object));
            }),
            drop: Box::new(move |object| {
                drop.known().templates.remove(&Key::of(&object.metadata));
            }),
            known: Box::new(move |namespace| keys_of(known.known().templates.keys(), namespace)),
            listed: Box::new(move |_, gone| listed.known().templates.retain(|key, _| !gone.contains(key))),
        }
    }
}

impl Sink<Pool> {
    fn pools(world: &Arc<World>) -> Self {
        let [put, drop, known, listed] = std::array::from_fn(|_| Arc::clone(world));
        Self {
            put: Box::new(move |object| {
                put.known().pools.insert(Key::of(&object.metadata), Arc::new(object));
            }),
            drop: Box::new(move |object| {
                drop.known().pools.remove(&Key::of(&object.metadata));
            }),
            known: Box::new(move |namespace| keys_of(known.known().pools.keys(), namespace)),
            listed: Box::new(move |_, gone| listed.known().pools.retain(|key, _| !gone.contains(key))),
        }
    }
}

/// How long the first lists may take.
pub(crate) const FIRST_LISTS: Duration = Duration::from_secs(30);
