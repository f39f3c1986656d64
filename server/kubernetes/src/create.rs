//! Create: get or make. Of many who come at once, the API server lets one make the claim.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{ObjectMeta, OwnerReference, Time},
    },
    jiff::Timestamp,
};
use kube::{Api, Resource as _, api::PostParams, core::Object};
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::EnvVar,
    v1::{self as pb, ErrorReason, SandboxState},
};
use sandgate_provider::{Begun, NewSandbox};
use tokio::time::Instant;

use crate::{
    api::{Claim, ClaimEnv, ClaimSpec, Lifecycle, Named, Pool, PoolSpec, Template, Version, VolumeClaimTemplate},
    birth::Asked,
    driver::Driver,
    lease,
    memo::{MANAGED_BY, MANAGER, Memo, Mode, PoolMemo, VolumeMemo},
    notes::Notes,
    seal,
    shared::{Shared, failed, is_conflict, stopping},
    view::now_ms,
    world::Key,
};

/// How long a claim lives of which nobody has seen that it is ready. Its maker extends it while it waits.
pub(crate) const PROVISIONAL: Duration = Duration::from_secs(120);
/// How long to wait for one that is being removed.
const REMOVAL: Duration = Duration::from_secs(60);
const ATTEMPTS: usize = 8;
/// How long the watch may take to show what the API server has already.
const NEWS: Duration = Duration::from_secs(10);
const POOL_NEWS: Duration = Duration::from_millis(20);

/// What to make a sandbox from.
#[derive(Debug)]
struct Origin {
    namespace: String,
    template: Arc<Template>,
    notes: Notes,
    /// v1beta1 claims can't do without one.
    pool: Option<Arc<Pool>>,
}

// === impl Shared ===

impl Shared {
    pub(crate) async fn create(self: &Arc<Self>, wanted: NewSandbox) -> Result<Begun, Refusal> {
        let asked = Asked::now();
        for _ in 0..ATTEMPTS {
            if self.is_closing() {
                return Err(stopping());
            }
            if let Some(key) = self.world.find(&wanted.name) {
                if let Some(begun) = self.find(&key, &wanted, asked.clone()).await? {
                    return Ok(begun);
                }
                continue;
            }
            let origin = self.origin(&wanted)?;
            if let Some(begun) = self.make(&wanted, &origin, asked.clone()).await? {
                return Ok(begun);
            }
        }
        let message = format!("sandbox {} is made and removed by others again and again", wanted.name);
        Err(Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(super::shared::RETRY_AFTER))
    }

    /// Takes the sandbox that has the name, if it is the one that is wanted. `None`: it is gone by now.
    async fn find(self: &Arc<Self>, key: &Key, wanted: &NewSandbox, asked: Asked) -> Result<Option<Begun>, Refusal> {
        let found = self.world.look(key, |facts, entry| {
            let leaves =
                entry.claim.metadata.deletion_timestamp.is_some() || facts.view().state() == SandboxState::Deleting;
            (entry.uid().to_owned(), leaves, entry.memo.clone())
        });
        let Some((uid, leaves, memo)) = found else {
            return Ok(None);
        };
        if leaves {
            let gone = self
                .table()
                .wait(REMOVAL, |now| now.get(&key.name).is_none_or(|now| now.uid != uid))
                .await;
            if !gone {
                let message = format!("an earlier sandbox {} is still being removed", wanted.name);
                return Err(
                    Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(super::shared::RETRY_AFTER)
                );
            }
            return Ok(None);
        }
        self.check_same(wanted, key, &memo)?;
        let begun = self.resume_claim(key, &uid).await?;
        if let Some(begun) = &begun
            && begun.sandbox.state() == SandboxState::Creating
        {
            // Whoever made it may be gone.
            self.spawn_birth(key, &uid, Some(asked));
        }
        Ok(begun)
    }

    /// A repeat is the same when template, pool and volumes are.
    fn check_same(&self, wanted: &NewSandbox, key: &Key, memo: &Memo) -> Result<(), Refusal> {
        let template = match (wanted.template.as_str(), wanted.warm_pool.as_str()) {
            ("", "") => self.settings.default_template.as_str(),
            (template, _) => template,
        };
        let volumes: Vec<VolumeMemo> = wanted.volumes.iter().map(VolumeMemo::from).collect();
        let differs = if !template.is_empty() && !is_named(template, key, &memo.template) {
            Some(("template", memo.template.as_str()))
        } else if !wanted.warm_pool.is_empty() && !is_named(&wanted.warm_pool, key, &memo.pool) {
            Some(("warm_pool", memo.pool.as_str()))
        } else if volumes != memo.volumes {
            Some(("volumes", ""))
        } else {
            None
        };
        let Some((what, theirs)) = differs else {
            return Ok(());
        };
        let message = format!(
            "sandbox {} exists and was made with another {what} {theirs}",
            wanted.name
        );
        Err(Refusal::new(ErrorReason::SandboxAlreadyExists, message.trim_end()).with(what, theirs))
    }

    /// Makes the claim. `None`: somebody else was quicker.
    async fn make(
        self: &Arc<Self>,
        wanted: &NewSandbox,
        origin: &Origin,
        mut asked: Asked,
    ) -> Result<Option<Begun>, Refusal> {
        let key = Key::new(&origin.namespace, wanted.name.as_str());
        let pool = self.pool(origin).await?;
        let claim = self.claim(wanted, origin, pool.as_deref(), &key)?;
        let posted = self.claims(&key.namespace).create(&PostParams::default(), &claim).await;
        let claim = match posted {
            Ok(claim) => claim,
            Err(error) if is_conflict(&error) => {
                self.meet(&key).await?;
                return Ok(None);
            }
            Err(error) => return Err(failed("the claim can't be made", &error)),
        };
        asked.posted = Some(Instant::now());
        asked.pool = pool.as_deref().map(pool_memo);
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        self.world.put_claim(claim);
        let Some(sandbox) = self.table().get(&key.name).filter(|sandbox| sandbox.uid == uid) else {
            // Another namespace has an earlier one.
            self.withdraw(&key, &uid).await;
            return Ok(None);
        };
        self.spawn_birth(&key, &uid, Some(asked));
        Ok(Some(Begun {
            sandbox,
            created: true,
            resumed: false,
        }))
    }

    /// The API server has a claim of that name which we do not know.
    async fn meet(&self, key: &Key) -> Result<(), Refusal> {
        let there = self.claims(&key.namespace).get_opt(&key.name).await;
        let Some(claim) = there.map_err(|error| failed("the claim can't be read", &error))? else {
            return Ok(());
        };
        if Memo::of(&claim).is_none() {
            let message = format!("there is a claim {key} that is not this server's; choose another name");
            return Err(Refusal::new(ErrorReason::SandboxAlreadyExists, message));
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        self.world.put_claim(claim);
        // It may be gone again already, of which only the watch will tell.
        let shown = self
            .table()
            .wait(NEWS, |now| now.get(&key.name).is_some_and(|now| now.uid == uid));
        let _ = shown.await;
        Ok(())
    }

    fn claim(&self, wanted: &NewSandbox, origin: &Origin, pool: Option<&Pool>, key: &Key) -> Result<Claim, Refusal> {
        let now = now_ms();
        let mut spans = origin.notes.spans;
        spans.ttl = spans.ttl.or(self.settings.default_ttl);
        let driver = origin.notes.driver;
        let env: Vec<EnvVar> = wanted.env.iter().map(env_var).collect();
        let env_in_claim = !env.is_empty() && !driver.takes_env();
        let sealed = match (&self.signer, env_in_claim) {
            (_, true) => None,
            (Some(signer), false) => {
                let keyring = signer.keyring();
                let secret = keyring.secrets().next();
                let secret = secret.ok_or_else(|| Refusal::new(ErrorReason::Internal, "there is no key"))?;
                seal::seal(&env, &Self::place(key), secret)?
            }
            (None, false) if env.is_empty() => None,
            (None, false) => {
                let message = "this server has no keys to keep an environment with: set kubernetes.keys_dir";
                return Err(Refusal::invalid("env", message));
            }
        };
        let memo = Memo {
            template: name_of(&origin.template.metadata),
            pool: wanted.warm_pool.clone(),
            volumes: wanted.volumes.iter().map(VolumeMemo::from).collect(),
            driver,
            connection: wanted.connection_mode.into(),
            creator: self.settings.identity.clone(),
            deadline_ms: self.settings.spans.deadline(wanted.end, Some(spans), now)?,
            idle_ms: self.settings.spans.idle(wanted.idle_limit, Some(spans))?,
            env: sealed,
            env_in_claim,
            mode: Mode::Running,
            asleep_by_ms: None,
            pool_found: pool.map(pool_memo),
            started: None,
            last_end: None,
        };
        lease::check(driver, memo.idle_ms)?;
        let mut labels: BTreeMap<String, String> = wanted.labels.clone();
        labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
        let mut claim = Object::new(wanted.name.as_str(), &self.resources.claims, ClaimSpec::default());
        claim.metadata.namespace = Some(key.namespace.clone());
        claim.metadata.labels = Some(labels);
        claim.metadata.annotations = Some([(crate::memo::MEMO.to_owned(), memo.to_json())].into());
        let named = |meta: &ObjectMeta| Named { name: name_of(meta) };
        match self.resources.version {
            Version::V1beta1 => claim.spec.warm_pool_ref = pool.map(|pool| named(&pool.metadata)),
            Version::V1alpha1 => {
                claim.spec.sandbox_template_ref = Some(named(&origin.template.metadata));
                // Which refuses an environment wherever a pool might be used.
                claim.spec.warm_pool = match env_in_claim {
                    true => Some("none".to_owned()),
                    false => pool.map(|pool| name_of(&pool.metadata)),
                };
            }
        }
        claim.spec.lifecycle = Some(Lifecycle {
            shutdown_time: Some(at_ms(now + sandgate_provider::limits::millis(PROVISIONAL))),
            ttl_seconds_after_finished: None,
            shutdown_policy: Some("Delete".to_owned()),
        });
        if env_in_claim {
            claim.spec.env = env.iter().map(claim_env).collect::<Result<_, _>>()?;
        }
        claim.spec.volume_claim_templates = wanted.volumes.iter().map(volume_claim).collect();
        if !wanted.volumes.is_empty() && self.resources.version == Version::V1alpha1 {
            let message = "the cluster's agent-sandbox is too old for volumes of a claim";
            return Err(Refusal::invalid("volumes", message));
        }
        Ok(claim)
    }

    /// The template or the pool that is wanted, and the other of them.
    fn origin(&self, wanted: &NewSandbox) -> Result<Origin, Refusal> {
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
    async fn pool(&self, origin: &Origin) -> Result<Option<Arc<Pool>>, Refusal> {
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

/// Whether a name that a caller gave, with or without its namespace, means that object of a claim's namespace.
fn is_named(given: &str, key: &Key, name: &str) -> bool {
    let plain = |text: &str| crate::world::template_name(text).to_owned();
    let namespace = given.split_once('/').map(|(namespace, _)| namespace);
    namespace.is_none_or(|namespace| namespace == key.namespace) && plain(given) == plain(name)
}

pub(crate) fn name_of(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

/// A time for Kubernetes, which has whole seconds: not before `ms`.
pub(crate) fn at_ms(ms: u64) -> Time {
    let seconds = i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX);
    // The last second of the year 9999.
    Time(Timestamp::from_second(seconds.min(253_402_207_200)).unwrap_or(Timestamp::MAX))
}

fn env_var(variable: &pb::EnvVar) -> EnvVar {
    EnvVar {
        name: variable.name.clone(),
        value: variable.value.clone(),
        value_raw: variable.value_raw.clone(),
    }
}

fn claim_env(variable: &EnvVar) -> Result<ClaimEnv, Refusal> {
    if !variable.value_raw.is_empty() {
        let message = format!(
            "{} is not UTF-8, and what runs in this template takes no other",
            variable.name
        );
        return Err(Refusal::invalid("env", message));
    }
    Ok(ClaimEnv {
        name: variable.name.clone(),
        value: variable.value.clone(),
    })
}

fn volume_claim(volume: &pb::Volume) -> VolumeClaimTemplate {
    let storage = Quantity(volume.bytes.to_string());
    VolumeClaimTemplate {
        metadata: Named {
            name: volume.name.clone(),
        },
        spec: PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), storage)].into()),
                ..VolumeResourceRequirements::default()
            }),
            storage_class_name: Some(volume.storage_class.clone()).filter(|class| !class.is_empty()),
            ..PersistentVolumeClaimSpec::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{claim, provider, refusal};
    use sandgate_proto::v1::ConnectionMode;

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

    #[test]
    fn a_template_may_be_named_with_its_namespace() {
        let key = Key::new("ns", "mine");
        assert!(is_named("t", &key, "t") && is_named("ns/t", &key, "t"));
        assert!(!is_named("other/t", &key, "t") && !is_named("u", &key, "t"));
    }

    #[test]
    fn a_deadline_is_never_early() {
        assert_eq!(at_ms(1_700_000_000_001).0.as_second(), 1_700_000_001);
        assert!(at_ms(u64::MAX).0 <= Timestamp::MAX);
    }

    fn wanted(name: &str) -> NewSandbox {
        NewSandbox {
            name: sandgate_provider::Name::parse("name", name).unwrap(),
            unnamed: false,
            template: String::new(),
            labels: BTreeMap::from([("team".to_owned(), "red".to_owned())]),
            env: vec![pb::EnvVar {
                name: "TOKEN".to_owned(),
                value: "hunter2".to_owned(),
                ..pb::EnvVar::default()
            }],
            end: sandgate_provider::End::Default,
            idle_limit: None,
            warm_pool: String::new(),
            connection_mode: ConnectionMode::Unspecified,
            volumes: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_new_claim_ends_soon_and_tells_no_secret() {
        let (shared, log) = provider(|asked| {
            let mut made = asked.body.clone();
            made["metadata"]["uid"] = json!("u");
            made["metadata"]["resourceVersion"] = json!("1");
            (201, made)
        });
        let begun = shared.create(wanted("mine")).await.unwrap();
        assert!(begun.created && begun.sandbox.uid == "u");
        let asked = log.lock().unwrap().clone();
        let paths: Vec<_> = asked
            .iter()
            .map(|asked| asked.path.rsplit('/').next().unwrap().to_owned())
            .collect();
        assert_eq!(paths, ["sandboxwarmpools", "sandboxclaims"]);
        let claim = &asked[1].body;
        assert_eq!(claim["spec"]["warmPoolRef"]["name"], "sandgate-plain");
        assert_eq!(claim["metadata"]["labels"]["team"], "red");
        let lifecycle = &claim["spec"]["lifecycle"];
        assert_eq!(lifecycle["shutdownPolicy"], "Delete");
        let ends: Timestamp = lifecycle["shutdownTime"].as_str().unwrap().parse().unwrap();
        let left = ends.duration_since(Timestamp::now()).as_secs();
        assert!((60..=122).contains(&left), "{left}");
        assert!(!claim.to_string().contains("hunter2"));
        assert_eq!(asked[0].body["metadata"]["ownerReferences"][0]["name"], "plain");
    }

    #[tokio::test]
    async fn a_claim_that_is_not_ours_is_left_alone() {
        let (shared, log) = provider(|asked| match asked.method.as_str() {
            "POST" if asked.path.ends_with("sandboxclaims") => refusal(409),
            "POST" => (201, asked.body.clone()),
            _ => {
                let mut theirs = claim("mine", "x", 3, &Memo::default());
                theirs["metadata"]["labels"] = json!({});
                (200, theirs)
            }
        });
        let refused = shared.create(wanted("mine")).await.unwrap_err();
        assert_eq!(refused.reason, ErrorReason::SandboxAlreadyExists);
        assert!(
            log.lock()
                .unwrap()
                .iter()
                .all(|asked| asked.method != "DELETE" && asked.method != "PATCH")
        );
    }

    #[tokio::test]
    async fn a_claim_that_another_server_made_is_taken_if_it_is_the_same() {
        let theirs = |template: &str| Memo {
            template: template.to_owned(),
            ..Memo::default()
        };
        for (template, same) in [("plain", true), ("other", false)] {
            let there = claim("mine", "x", 3, &theirs(template));
            let (shared, _) = provider(move |asked| match asked.method.as_str() {
                "POST" if asked.path.ends_with("sandboxclaims") => refusal(409),
                "POST" => (201, asked.body.clone()),
                _ => (200, there.clone()),
            });
            match shared.create(wanted("mine")).await {
                Ok(begun) => assert!(same && !begun.created && begun.sandbox.uid == "x"),
                Err(refused) => {
                    assert!(!same);
                    assert_eq!(refused.reason, ErrorReason::SandboxAlreadyExists);
                }
            }
        }
    }
}
