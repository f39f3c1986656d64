//! The watches: one for each kind of object and namespace, shared by every call. Nothing polls.

use std::{fmt::Debug, future::Future, sync::Arc, time::Duration};

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
    world::{Key, World},
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
    /// After a fresh list of a namespace: these are all.
    keep: Box<Keep>,
}

type Keep = dyn Fn(&str, &[Key]) + Send + Sync;

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
    let mut listed = Vec::new();
    let mut seen = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.push(Key::of(object.meta()));
                (sink.put)(object);
            }
            Ok(Event::InitDone) => {
                (sink.keep)(&namespace, &listed);
                listed.clear();
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
        let (put, drop, keep) = (Arc::clone(world), Arc::clone(world), Arc::clone(world));
        Self {
            put: Box::new(move |claim| put.put_claim(claim)),
            drop: Box::new(move |claim| {
                // Its last state tells how it ended.
                let (key, uid) = (Key::of(&claim.metadata), claim.metadata.uid.clone());
                drop.put_claim(claim);
                drop.drop_claim(&key, uid.as_deref());
            }),
            keep: Box::new(move |namespace, there| keep.keep_claims(namespace, there)),
        }
    }
}

impl Sink<Pod> {
    fn pods(world: &Arc<World>) -> Self {
        let (put, drop, keep) = (Arc::clone(world), Arc::clone(world), Arc::clone(world));
        Self {
            put: Box::new(move |pod| put.put_pod(pod)),
            drop: Box::new(move |pod| {
                let key = Key::of(&pod.metadata);
                drop.put_pod(pod);
                drop.drop_pod(&key);
            }),
            keep: Box::new(move |namespace, there| keep.keep_pods(namespace, there)),
        }
    }
}

impl Sink<Template> {
    fn templates(world: &Arc<World>) -> Self {
        let (put, drop, keep) = (Arc::clone(world), Arc::clone(world), Arc::clone(world));
        Self {
            put: Box::new(move |object| {
                put.known()
                    .templates
                    .insert(Key::of(&object.metadata), Arc::new(object));
            }),
            drop: Box::new(move |object| {
                drop.known().templates.remove(&Key::of(&object.metadata));
            }),
            keep: Box::new(move |namespace, there| {
                let stays = |key: &Key| key.namespace != namespace || there.contains(key);
                keep.known().templates.retain(|key, _| stays(key));
            }),
        }
    }
}

impl Sink<Pool> {
    fn pools(world: &Arc<World>) -> Self {
        let (put, drop, keep) = (Arc::clone(world), Arc::clone(world), Arc::clone(world));
        Self {
            put: Box::new(move |object| {
                put.known().pools.insert(Key::of(&object.metadata), Arc::new(object));
            }),
            drop: Box::new(move |object| {
                drop.known().pools.remove(&Key::of(&object.metadata));
            }),
            keep: Box::new(move |namespace, there| {
                let stays = |key: &Key| key.namespace != namespace || there.contains(key);
                keep.known().pools.retain(|key, _| stays(key));
            }),
        }
    }
}

/// How long the first lists may take.
pub(crate) const FIRST_LISTS: Duration = Duration::from_secs(30);
