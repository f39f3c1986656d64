//! Templates and pools, and the public keys that templates give to their pods.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
};
use sandgate_auth::{JWKS_FILE, Signer};
use sandgate_provider::Finding;
use serde_json::Value;

use super::{Say, told, within};
use crate::{
    api::{Pool, Resources, Template},
    driver::Driver,
    notes::Notes,
    settings::Settings,
    world::Key,
};

/// What the cluster has to make sandboxes from.
#[derive(Debug, Default)]
pub(super) struct Objects {
    templates: BTreeMap<Key, Known>,
    pools: BTreeMap<Key, Pool>,
    /// Whether all of it could be read.
    whole: bool,
}

#[derive(Debug)]
struct Known {
    notes: Result<Notes, String>,
    /// Names of ConfigMaps that its pods mount.
    config_maps: Vec<String>,
}

// === impl Objects ===

impl Objects {
    /// Reads and judges them.
    pub(super) async fn look(client: &Client, resources: &Resources, settings: &Settings, say: &mut Say<'_>) -> Self {
        let mut objects = Self {
            whole: true,
            ..Self::default()
        };
        for namespace in &settings.namespaces {
            objects.read(client, resources, namespace, say).await;
        }
        objects.judge(settings, say);
        objects
    }

    /// Whether a template has that driver. One that can't be read might.
    pub(super) fn uses(&self, driver: Driver) -> bool {
        let mut notes = self.templates.values().filter_map(|known| known.notes.as_ref().ok());
        notes.any(|notes| notes.driver == driver)
    }

    async fn read(&mut self, client: &Client, resources: &Resources, namespace: &str, say: &mut Say<'_>) {
        let advice = "the lines about rights say what is missing";
        // As they are: how a pod mounts its keys is in a part of the template that nobody else of us reads.
        let templates: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resources.templates);
        match within(templates.list(&ListParams::default())).await {
            Ok(list) => {
                for object in list.items {
                    self.templates.insert(Key::of(&object.metadata), Known::read(object));
                }
            }
            Err(error) => {
                self.whole = false;
                say(Finding::problem(format!("templates in {namespace}"), error, advice));
            }
        }
        let pools: Api<Pool> = Api::namespaced_with(client.clone(), namespace, &resources.pools);
        match within(pools.list(&ListParams::default())).await {
            Ok(list) => {
                let items = list.items.into_iter();
                self.pools.extend(items.map(|pool| (Key::of(&pool.metadata), pool)));
            }
            Err(error) => {
                self.whole = false;
                say(Finding::problem(format!("pools in {namespace}"), error, advice));
            }
        }
    }

    fn judge(&self, settings: &Settings, say: &mut Say<'_>) {
        if self.templates.is_empty() && self.whole {
            let detail = format!("there is none in {}", settings.namespaces.join(", "));
            say(Finding::problem("templates", detail, "make a SandboxTemplate there"));
        }
        for (key, known) in &self.templates {
            say(self.judge_template(key, known, settings));
        }
        for (key, pool) in &self.pools {
            let template = Key::new(&key.namespace, &pool.spec.sandbox_template_ref.name);
            if !self.templates.contains_key(&template) && self.whole {
                let detail = format!("its template {} does not exist", template.name);
                let advice = "make the template, or remove the pool";
                say(Finding::warning(format!("pool {key}"), detail, advice));
            }
        }
        if let Some(missing) = self.missing_default(settings) {
            let advice = "name another in default_template, or make it";
            say(Finding::problem("default_template", missing, advice));
        }
    }

    fn judge_template(&self, key: &Key, known: &Known, settings: &Settings) -> Finding {
        let what = format!("template {key}");
        let notes = match &known.notes {
            Ok(notes) => notes,
            Err(error) => return Finding::problem(what, error.as_str(), "correct the annotation"),
        };
        let driver = notes.driver.as_str();
        if notes.driver == Driver::Runtime && settings.keys_dir.is_none() {
            let detail = format!("{driver} wants tokens, and there are no keys");
            let advice = "set kubernetes.keys_dir, or name another driver in the annotation sandgate.dev/driver";
            return Finding::problem(what, detail, advice);
        }
        let pools: Vec<String> = self.pools_of(key).map(describe).collect();
        match (pools.as_slice(), settings.make_pools) {
            ([], true) => Finding::ok(what, format!("{driver}; no pool, so every start is a cold one")),
            ([], false) => Finding::problem(
                what,
                "it has no pool, and claims can't do without",
                "make a SandboxWarmPool, of no replicas if need be, or set kubernetes.make_pools = true",
            ),
            (pools, _) => Finding::ok(what, format!("{driver}; {}", pools.join(", "))),
        }
    }

    fn pools_of<'a>(&'a self, template: &'a Key) -> impl Iterator<Item = &'a Pool> {
        let of_it = move |(key, pool): &(&Key, &Pool)| {
            key.namespace == template.namespace && pool.spec.sandbox_template_ref.name == template.name
        };
        self.pools.iter().filter(of_it).map(|(_, pool)| pool)
    }

    fn missing_default(&self, settings: &Settings) -> Option<String> {
        let wanted = settings.default_template.as_str();
        if wanted.is_empty() || !self.whole {
            return None;
        }
        let first = settings.namespaces.first().map_or("", String::as_str);
        let (namespace, name) = wanted.split_once('/').unwrap_or((first, wanted));
        let there = self.templates.contains_key(&Key::new(namespace, name));
        (!there).then(|| format!("there is no template {name} in {namespace}"))
    }
}

fn describe(pool: &Pool) -> String {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let ready = pool.status.as_ref().map_or(0, |status| status.ready_replicas);
    let wanted = pool.spec.replicas.unwrap_or(0);
    format!("pool {name} has {ready} of {wanted} ready")
}

// === impl Known ===

impl Known {
    fn read(object: DynamicObject) -> Self {
        let volumes = object.data.pointer("/spec/podTemplate/spec/volumes");
        let volumes = volumes.and_then(Value::as_array).into_iter().flatten();
        let config_maps = volumes
            .filter_map(|volume| volume.pointer("/configMap/name")?.as_str())
            .map(str::to_owned)
            .collect();
        let template = serde_json::to_value(&object).and_then(serde_json::from_value::<Template>);
        let notes = match template {
            Ok(template) => Notes::read(&template),
            Err(error) => Err(error.to_string()),
        };
        Self { notes, config_maps }
    }
}

/// Whether the key that signs is where the pods of our runtime look for it. A server's own role need not permit this look.
pub(super) async fn published(client: &Client, signer: &Signer, objects: &Objects, say: &mut Say<'_>) {
    let jwks = signer.jwks();
    let Some(signs) = jwks.pointer("/keys/0/x") else { return };
    let ours = objects.templates.iter().filter(|(_, known)| {
        let driver = known.notes.as_ref().ok().map(|notes| notes.driver);
        driver == Some(Driver::Runtime)
    });
    let mut maps: BTreeSet<Key> = BTreeSet::new();
    for (key, known) in ours {
        if known.config_maps.is_empty() {
            let detail = "its pods mount no ConfigMap, so where are their public keys?";
            let advice = format!("mount one with {JWKS_FILE} and name its directory in --keys of the runtime");
            say(Finding::warning(format!("template {key}"), detail, advice));
        }
        maps.extend(known.config_maps.iter().map(|name| Key::new(&key.namespace, name)));
    }
    for key in maps {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), &key.namespace);
        let what = format!("public keys in {key}");
        let map = match api.get_opt(&key.name).await {
            Ok(map) => map,
            // It is the server's business to sign, not to publish.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                say(Finding::ok(what, "not looked at: that needs get on configmaps"));
                continue;
            }
            Err(error) => {
                say(Finding::warning(what, told(&error), ""));
                continue;
            }
        };
        let text = map.and_then(|map| map.data?.remove(JWKS_FILE));
        say(judge_published(what, text.as_deref(), signs));
    }
}

fn judge_published(what: String, text: Option<&str>, signs: &Value) -> Finding {
    let Some(text) = text else {
        let detail = format!("there is no {JWKS_FILE}");
        return Finding::problem(what, detail, "put there what `sandgate-server keys jwks DIR` prints");
    };
    let published: Value = serde_json::from_str(text).unwrap_or_default();
    let keys = published["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
    if keys.iter().any(|key| key.get("x") == Some(signs)) {
        Finding::ok(what, format!("{} are there, with the one that signs", keys.len()))
    } else {
        let detail = "the key that signs is not there, so no sandbox believes the server";
        let advice = "publish `sandgate-server keys jwks DIR` first, then let the new key sign";
        Finding::problem(what, detail, advice)
    }
}

#[cfg(test)]
mod tests {
    use sandgate_provider::Verdict;
    use serde_json::json;

    use super::*;
    use crate::doctor::testing::settings;

    fn template(name: &str, annotations: Value) -> (Key, Known) {
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name, "annotations": annotations},
            "spec": {"podTemplate": {"spec": {"volumes": [
                {"name": "keys", "configMap": {"name": "public"}},
                {"name": "work", "emptyDir": {}},
            ]}}},
        }))
        .unwrap();
        (Key::of(&object.metadata), Known::read(object))
    }

    fn pool(name: &str, template: &str) -> (Key, Pool) {
        let pool: Pool = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {"replicas": 3, "sandboxTemplateRef": {"name": template}},
            "status": {"readyReplicas": 2},
        }))
        .unwrap();
        (Key::of(&pool.metadata), pool)
    }

    fn judged(objects: &Objects, settings: &Settings) -> Vec<(Verdict, String)> {
        let mut lines = Vec::new();
        objects.judge(settings, &mut |finding| {
            lines.push((finding.verdict, finding.to_string()))
        });
        lines
    }

    #[test]
    fn templates_are_told_with_their_pools_and_what_is_wrong_with_them() {
        let objects = Objects {
            templates: [
                template("good", json!({"sandgate.dev/driver": "exec"})),
                template("typo", json!({"sandgate.dev/driver": "docker"})),
                template("keyless", json!({})),
            ]
            .into(),
            pools: [pool("good-pool", "good"), pool("orphan", "gone")].into(),
            whole: true,
        };
        let mut settings = settings();
        settings.namespaces = vec!["ns".to_owned()];
        settings.default_template = "nowhere".to_owned();
        let lines = judged(&objects, &settings);
        for (verdict, words) in [
            (Verdict::Ok, "template ns/good: exec; pool good-pool has 2 of 3 ready"),
            (
                Verdict::Problem,
                "template ns/typo: its annotation sandgate.dev/driver is \"docker\"",
            ),
            (Verdict::Problem, "template ns/keyless: sandgate-runtime wants tokens"),
            (Verdict::Warning, "pool ns/orphan: its template gone does not exist"),
            (Verdict::Problem, "default_template: there is no template nowhere in ns"),
        ] {
            let found = lines.iter().find(|(_, line)| line.contains(words));
            assert_eq!(found.map(|(verdict, _)| *verdict), Some(verdict), "{words}: {lines:?}");
        }
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert!(objects.uses(Driver::Exec) && !objects.uses(Driver::Sandboxd));
        let (_, known) = template("x", json!({}));
        assert_eq!(known.config_maps, ["public"]);

        settings.make_pools = false;
        settings.default_template = "ns/good".to_owned();
        settings.keys_dir = Some("/keys".into());
        let lines = judged(&objects, &settings);
        let keyless = lines.iter().find(|(_, line)| line.contains("keyless")).unwrap();
        assert!(
            keyless.0 == Verdict::Problem && keyless.1.contains("it has no pool"),
            "{keyless:?}"
        );
        assert_eq!(lines.len(), 4, "{lines:?}");
    }

    #[test]
    fn a_key_that_signs_must_be_published() {
        let signs = json!("one");
        let judge = |text| judge_published("keys".to_owned(), text, &signs).verdict;
        assert_eq!(judge(Some(r#"{"keys":[{"x":"two"},{"x":"one"}]}"#)), Verdict::Ok);
        for bad in [None, Some("nonsense"), Some(r#"{"keys":[{"x":"two"}]}"#)] {
            assert_eq!(judge(bad), Verdict::Problem, "{bad:?}");
        }
    }
}
