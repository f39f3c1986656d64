//! What a sandbox is made from: a template, and the pool that its claim names.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Resource as _, api::PostParams, core::Object};
use sandgate_errors::Refusal;
use sandgate_proto::v1::ErrorReason;
use sandgate_provider::NewSandbox;
use tokio::time::Instant;

use crate::{
    api::{Named, Pool, PoolSpec, Template, Version},
    driver::Driver,
    memo::{MANAGED_BY, MANAGER, PoolMemo},
    notes::Notes,
    shared::{Shared, failed, is_conflict},
    world::Key,
};

/// How long the watch may take to show a pool that another server made.
const NEWS: Duration = Duration::from_secs(10);
const POOL_NEWS: Duration = Duration::from_millis(20);

/// What to make a sandbox from.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) namespace: String,
    pub(crate) template: Arc<Template>,
    pub(crate) notes: Notes,
    /// v1beta1 claims can't do without one.
    pool: Option<Arc<Pool>>,
}

// === impl Shared ===

impl Shared {
    /// The template or the pool that is wanted, and the other of them.
    pub(crate) fn origin(&self, wanted: &NewSandbox) -> Result<Origin, Refusal> {
        let known = self.world.known();
        let pool = match wanted.warm_pool.as_str() {
            "" => None,
            name => {
                let found = self.search(name, |key| known.pools.get(key).cloned());
                Some(found.ok_or_else(|| {
                    let names: Vec<_> = known.pools.keys().map(ToString::to_string).collect();
                    Refusal::invalid(
                        "warm_pool",
                        format!("there is no pool {name:?}; there are: {}", names.join(", ")),
                    )
                })?)
            }
        };
        let name = match (&pool, wanted.template.as_str()) {
            (Some(pool), "") => format!(
                "{}/{}",
                Key::of(&pool.metadata).namespace,
                pool.spec.sandbox_template_ref.name
            ),
            (None, "") => self.settings.default_template.clone(),
            (_, name) => name.to_owned(),
        };
        if name.is_empty() {
            let message = "must be given, or warm_pool: this server has no default_template";
            return Err(Refusal::invalid("template", message));
        }
        let template = self
            .search(&name, |key| known.templates.get(key).cloned())
            .ok_or_else(|| {
                let names: Vec<_> = known.templates.keys().map(ToString::to_string).collect();
                let message = format!("there is no SandboxTemplate {name:?}; there are: {}", names.join(", "));
                Refusal::new(ErrorReason::TemplateNotFound, message)
            })?;
        if let Some(pool) = &pool
            && (Key::of(&pool.metadata).namespace, &pool.spec.sandbox_template_ref.name)
                != (Key::of(&template.metadata).namespace, &name_of(&template.metadata))
        {
            let message = format!(
                "pool {} is of template {}",
                name_of(&pool.metadata),
                pool.spec.sandbox_template_ref.name
            );
            return Err(Refusal::invalid("warm_pool", message));
        }
        let notes = Notes::read(&template).map_err(|problem| {
            let message = format!("SandboxTemplate {}: {problem}", Key::of(&template.metadata));
            Refusal::new(ErrorReason::SandboxFailed, message)
        })?;
        if notes.driver == Driver::Runtime && self.signer.is_none() {
            let message =
                "this server has no keys, without which it can't speak to sandgate-runtime: set kubernetes.keys_dir";
            return Err(Refusal::new(ErrorReason::SandboxFailed, message));
        }
        let mode = self.wanted_mode(wanted.connection_mode, notes.connection);
        self.modes.check(mode, notes.driver)?;
        let namespace = Key::of(&template.metadata).namespace;
        let pool = pool.or_else(|| best_pool(&known.pools, &Key::of(&template.metadata)));
        Ok(Origin {
            namespace,
            template,
            notes,
            pool,
        })
    }

    /// What `name`, with or without a namespace before it, stands for.
    fn search<T>(&self, name: &str, get: impl Fn(&Key) -> Option<T>) -> Option<T> {
        match name.split_once('/') {
            Some((namespace, name)) => get(&Key::new(namespace, name)),
            None => self
                .settings
                .namespaces
                .iter()
                .find_map(|namespace| get(&Key::new(namespace, name))),
        }
    }

    /// The pool to claim from. Where a template has none and claims need one, an empty one is made, always of the same
    /// name, which goes with the template.
    pub(crate) async fn pool(&self, origin: &Origin) -> Result<Option<Arc<Pool>>, Refusal> {
        if origin.pool.is_some() || self.resources.version == Version::V1alpha1 {
            return Ok(origin.pool.clone());
        }
        let template = name_of(&origin.template.metadata);
        if !self.settings.make_pools {
            let message = format!(
                "template {template} has no SandboxWarmPool, which claims need, and the server may make none: make one with replicas: 0, or set kubernetes.make_pools"
            );
            return Err(Refusal::new(ErrorReason::SandboxFailed, message));
        }
        let name = empty_pool_name(&template);
        let _only_one = self.pool_maker.lock().await;
        let key = Key::new(&origin.namespace, &name);
        if let Some(made) = self.known_pool(&key) {
            return is_of(made, &template).map(Some);
        }
        let mut pool: Pool = Object::new(
            &name,
            &self.resources.pools,
            PoolSpec {
                replicas: Some(0),
                sandbox_template_ref: Named { name: template.clone() },
            },
        );
        pool.metadata.namespace = Some(origin.namespace.clone());
        pool.metadata.labels = Some([(MANAGED_BY.to_owned(), MANAGER.to_owned())].into());
        pool.metadata.owner_references = origin
            .template
            .controller_owner_ref(&self.resources.templates)
            .map(|owner| {
                vec![OwnerReference {
                    controller: None,
                    block_owner_deletion: None,
                    ..owner
                }]
            });
        let api: Api<Pool> = Api::namespaced_with(self.client.clone(), &origin.namespace, &self.resources.pools);
        match api.create(&PostParams::default(), &pool).await {
            Ok(made) => {
                let made = Arc::new(made);
                self.world
                    .known()
                    .pools
                    .insert(Key::of(&made.metadata), Arc::clone(&made));
                Ok(Some(made))
            }
            // Another server made it, of which the watch will tell.
            Err(error) if is_conflict(&error) => {
                let until = Instant::now() + NEWS;
                loop {
                    if let Some(made) = self.known_pool(&key) {
                        return is_of(made, &template).map(Some);
                    }
                    if Instant::now() >= until {
                        return Err(failed("a pool for the template can't be found", &error));
                    }
                    tokio::time::sleep(POOL_NEWS).await;
                }
            }
            Err(error) => Err(failed("a pool for the template can't be made", &error)),
        }
    }

    fn known_pool(&self, key: &Key) -> Option<Arc<Pool>> {
        self.world.known().pools.get(key).cloned()
    }
}

/// Somebody may have made a pool of that name for something else.
fn is_of(pool: Arc<Pool>, template: &str) -> Result<Arc<Pool>, Refusal> {
    let theirs = &pool.spec.sandbox_template_ref.name;
    if theirs == template {
        return Ok(pool);
    }
    let message = format!(
        "SandboxWarmPool {} is of template {theirs}; the server wants that name for template {template}: make a pool for it, or rename that one",
        name_of(&pool.metadata)
    );
    Err(Refusal::new(ErrorReason::SandboxFailed, message))
}

/// The pool that is most likely to have one ready.
fn best_pool(pools: &BTreeMap<Key, Arc<Pool>>, template: &Key) -> Option<Arc<Pool>> {
    let of_template = pools.iter().filter(|(key, pool)| {
        key.namespace == template.namespace && pool.spec.sandbox_template_ref.name == template.name
    });
    let rank = |pool: &Pool| {
        let ready = pool.status.as_ref().map_or(0, |status| status.ready_replicas);
        (ready, pool.spec.replicas.unwrap_or(0))
    };
    of_template
        .max_by(|(a_key, a), (b_key, b)| rank(a).cmp(&rank(b)).then_with(|| b_key.cmp(a_key)))
        .map(|(_, pool)| Arc::clone(pool))
}

pub(crate) fn pool_memo(pool: &Pool) -> PoolMemo {
    let count = |number: i32| u32::try_from(number).unwrap_or(0);
    PoolMemo {
        name: name_of(&pool.metadata),
        ready: count(pool.status.as_ref().map_or(0, |status| status.ready_replicas)),
        // The API server writes 1 where nothing is written.
        wanted: count(pool.spec.replicas.unwrap_or(1)),
    }
}

/// Names of pools have at most 63 characters, and room for the suffix of their sandboxes.
fn empty_pool_name(template: &str) -> String {
    const LONGEST: usize = 48;
    if template.len() <= LONGEST {
        return format!("sandgate-{template}");
    }
    use sha2::{Digest as _, Sha256};
    let hash = Sha256::digest(template);
    let start = template.get(..LONGEST - 9).unwrap_or_default();
    format!(
        "sandgate-{start}-{:02x}{:02x}{:02x}{:02x}",
        hash[0], hash[1], hash[2], hash[3]
    )
}

pub(crate) fn name_of(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pool(name: &str, template: &str, ready: i32) -> (Key, Arc<Pool>) {
        let pool: Pool = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"replicas": 2, "sandboxTemplateRef": {"name": template}},
            "status": {"readyReplicas": ready},
        }))
        .unwrap();
        (Key::of(&pool.metadata), Arc::new(pool))
    }

    #[test]
    fn the_pool_with_most_ready_is_taken_and_of_equals_always_the_same() {
        let pools: BTreeMap<_, _> = [
            pool("b", "t", 1),
            pool("a", "t", 1),
            pool("c", "t", 0),
            pool("d", "u", 9),
        ]
        .into();
        let best = |pools: &BTreeMap<_, _>| best_pool(pools, &Key::new("ns", "t")).map(|pool| name_of(&pool.metadata));
        assert_eq!(best(&pools).as_deref(), Some("a"));
        assert_eq!(best_pool(&pools, &Key::new("other", "t")).map(|_| ()), None);
    }

    #[test]
    fn an_empty_pool_has_a_name_that_kubernetes_takes() {
        assert_eq!(empty_pool_name("python"), "sandgate-python");
        let (one, other) = (
            empty_pool_name(&"a".repeat(63)),
            empty_pool_name(&format!("{}b", "a".repeat(62))),
        );
        assert!(one.len() <= 58 && one != other, "{one} {other}");
    }
}
