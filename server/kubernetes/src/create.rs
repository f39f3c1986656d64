//! Create: get or make. Of many who come at once, the API server lets one make the claim.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{api::PostParams, core::Object};
use sandgate_errors::Refusal;
use sandgate_proto::{
    runtime::v1::EnvVar,
    v1::{self as pb, ErrorReason, SandboxState},
};
use sandgate_provider::{Begun, NewSandbox, limits::millis};
use tokio::time::Instant;

use crate::{
    api::{Claim, ClaimEnv, ClaimSpec, Lifecycle, Named, Pool, Version, VolumeClaimTemplate},
    birth::Asked,
    lease,
    lifecycle::{PROVISIONAL, at_ms},
    memo::{MANAGED_BY, MANAGER, MEMO, Memo, Mode, VolumeMemo},
    origin::{Origin, name_of, pool_memo},
    seal,
    shared::{RETRY_AFTER, Shared, failed, is_conflict, stopping},
    view::now_ms,
    world::{Key, template_name},
};

/// How long to wait for one that is being removed.
const REMOVAL: Duration = Duration::from_secs(60);
const ATTEMPTS: usize = 8;
/// How long the watch may take to show what the API server has already.
const NEWS: Duration = Duration::from_secs(10);

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
        Err(Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER))
    }

    /// Takes the sandbox that has the name, if it is the one that is wanted. `None`: it is gone by now.
    async fn find(self: &Arc<Self>, key: &Key, wanted: &NewSandbox, asked: Asked) -> Result<Option<Begun>, Refusal> {
        // Another server may have removed it a moment ago.
        self.reread(key).await?;
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
                return Err(Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER));
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
        claim.metadata.annotations = Some([(MEMO.to_owned(), memo.to_json())].into());
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
            shutdown_time: Some(at_ms(now + millis(PROVISIONAL))),
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
}

/// Whether a name that a caller gave, with or without its namespace, means that object of a claim's namespace.
fn is_named(given: &str, key: &Key, name: &str) -> bool {
    let plain = |text: &str| template_name(text).to_owned();
    let namespace = given.split_once('/').map(|(namespace, _)| namespace);
    namespace.is_none_or(|namespace| namespace == key.namespace) && plain(given) == plain(name)
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
    use k8s_openapi::jiff::Timestamp;
    use sandgate_proto::v1::ConnectionMode;
    use serde_json::json;

    use super::*;
    use crate::testing::{claim, provider, refusal};

    #[test]
    fn a_template_may_be_named_with_its_namespace() {
        let key = Key::new("ns", "mine");
        assert!(is_named("t", &key, "t") && is_named("ns/t", &key, "t"));
        assert!(!is_named("other/t", &key, "t") && !is_named("u", &key, "t"));
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
