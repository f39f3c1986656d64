//! What the server may do: every right that it uses, each with what it is for, asked for one by one.

use futures_util::future::join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::{Finding, Verdict};

use super::{Objects, Say, within};
use crate::{
    api::{CORE, EXTENSIONS},
    driver::Driver,
    settings::Settings,
};

/// One right.
#[derive(Debug, Clone)]
struct Right {
    group: &'static str,
    /// With its subresource, as roles have it.
    resource: &'static str,
    verb: &'static str,
    /// Of one object only.
    name: Option<String>,
    namespace: String,
    /// What is lost without it.
    lost: &'static str,
    /// How bad that is.
    verdict: Verdict,
}

/// Rights by resource: verbs, each with what is lost without it.
type Needs = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const ALWAYS: &[Needs] = &[
    (
        EXTENSIONS,
        "sandboxclaims",
        &[
            ("create", "no sandbox can be made"),
            ("get", "a sandbox that is there already can't be found by Create"),
            ("list", "the server does not start"),
            ("watch", "the server does not start"),
            ("patch", "no sandbox becomes ready, nor can it be changed"),
            ("delete", "no sandbox can be removed"),
        ],
    ),
    (
        CORE,
        "sandboxes",
        &[("patch", "no sandbox can be suspended or resumed")],
    ),
    (
        EXTENSIONS,
        "sandboxtemplates",
        &[
            ("list", "the server does not start"),
            ("watch", "the server does not start"),
        ],
    ),
    (
        EXTENSIONS,
        "sandboxwarmpools",
        &[
            ("list", "the server does not start"),
            ("watch", "the server does not start"),
        ],
    ),
    (
        "",
        "pods",
        &[
            ("list", "the server does not start"),
            ("watch", "the server does not start"),
        ],
    ),
];

/// Asks for all of them.
pub(super) async fn check(client: &Client, settings: &Settings, objects: &Objects, say: &mut Say<'_>) {
    let rights = needed(settings, objects);
    let asked = join_all(rights.iter().map(|right| ask(client, right))).await;
    let mut places: Vec<&str> = rights.iter().map(|right| right.namespace.as_str()).collect();
    places.dedup();
    for place in places {
        let of_place = || rights.iter().zip(&asked).filter(|(right, _)| right.namespace == place);
        let what = format!("rights in {place}");
        let mut missing = 0;
        for (right, answer) in of_place() {
            match answer {
                Ok(true) => continue,
                Ok(false) => say(right.missing(&what)),
                Err(error) => {
                    let detail = format!("can't ask whether {right} is permitted: {error}");
                    say(Finding::problem(&what, detail, ""));
                }
            }
            missing += 1;
        }
        if missing == 0 {
            say(Finding::ok(what, format!("all {} are there", of_place().count())));
        }
    }
}

/// What these settings and templates need.
fn needed(settings: &Settings, objects: &Objects) -> Vec<Right> {
    let mut rights = Vec::new();
    for namespace in &settings.namespaces {
        let mut need = |group, resource, verb, lost, verdict| {
            rights.push(Right {
                group,
                resource,
                verb,
                name: None,
                namespace: namespace.clone(),
                lost,
                verdict,
            });
        };
        for (group, resource, verbs) in ALWAYS {
            for (verb, lost) in *verbs {
                need(group, resource, verb, lost, Verdict::Problem);
            }
        }
        if settings.make_pools {
            let lost = "templates that have no pool can't be used (kubernetes.make_pools)";
            need(EXTENSIONS, "sandboxwarmpools", "create", lost, Verdict::Warning);
        }
        let tunnel = "sandboxes can't be reached by tunnel";
        let newer = "newer API servers want it as well";
        need("", "pods/portforward", "get", tunnel, tunnel_verdict(settings));
        need("", "pods/portforward", "create", newer, Verdict::Warning);
        if objects.uses(Driver::Exec) {
            let lost = "templates of driver exec can't be used";
            need("", "pods/exec", "get", lost, Verdict::Problem);
            need("", "pods/exec", "create", newer, Verdict::Warning);
        }
    }
    for verb in ["list", "watch"] {
        rights.extend(settings.gateway.as_ref().map(|gateway| Right {
            group: "gateway.networking.k8s.io",
            resource: "gateways",
            verb,
            name: Some(gateway.name.clone()),
            namespace: gateway.namespace.clone(),
            lost: "the Gateway's address is not known",
            verdict: Verdict::Problem,
        }));
    }
    rights
}

/// How bad it is to have no tunnel.
fn tunnel_verdict(settings: &Settings) -> Verdict {
    let only_way = !crate::provider::in_cluster(settings) && settings.gateway.is_none();
    match settings.connection {
        ConnectionMode::Tunnel => Verdict::Problem,
        ConnectionMode::Unspecified if only_way => Verdict::Problem,
        _ => Verdict::Warning,
    }
}

async fn ask(client: &Client, right: &Right) -> Result<bool, String> {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (right.resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(right.group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(right.verb.to_owned()),
                name: right.name.clone(),
                namespace: Some(right.namespace.clone()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = within(api.create(&PostParams::default(), &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

// === impl Right ===

impl Right {
    fn missing(&self, what: &str) -> Finding {
        let detail = format!("{self} is not permitted: {}", self.lost);
        let group = match self.group {
            "" => "\"\"",
            group => group,
        };
        let advice = format!(
            "add to the server's Role: {{apiGroups: [{group}], resources: [{}], verbs: [{}]}}",
            self.resource, self.verb
        );
        Finding::new(self.verdict, what, detail, advice)
    }
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.verb, self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{doctor::testing::settings, settings::GatewaySettings};

    fn named(settings: &Settings) -> Vec<String> {
        let rights = needed(settings, &Objects::default());
        rights
            .iter()
            .map(|right| format!("{}: {right}", right.namespace))
            .collect()
    }

    #[test]
    fn what_is_needed_follows_the_settings() {
        let mut settings = settings();
        settings.namespaces = vec!["a".to_owned(), "b".to_owned()];
        settings.in_cluster = Some(true);
        let plain = named(&settings);
        for right in [
            "a: create of sandboxclaims",
            "b: create of sandboxclaims",
            "b: patch of sandboxes",
            "a: get of pods/portforward",
            "a: create of sandboxwarmpools",
        ] {
            assert!(plain.contains(&right.to_owned()), "{right}: {plain:?}");
        }
        assert!(
            !plain
                .iter()
                .any(|right| right.contains("gateways") || right.contains("pods/exec"))
        );
        assert_eq!(tunnel_verdict(&settings), Verdict::Warning);

        settings.in_cluster = Some(false);
        assert_eq!(tunnel_verdict(&settings), Verdict::Problem);
        settings.gateway = Some(GatewaySettings {
            namespace: "edge".to_owned(),
            name: "outer".to_owned(),
            listener: None,
            hostname: None,
            ca_pem: None,
        });
        assert_eq!(tunnel_verdict(&settings), Verdict::Warning);
        settings.connection = ConnectionMode::Tunnel;
        assert_eq!(tunnel_verdict(&settings), Verdict::Problem);
        settings.make_pools = false;
        let other = named(&settings);
        assert!(other.contains(&"edge: watch of gateways".to_owned()), "{other:?}");
        assert!(
            !other.contains(&"a: create of sandboxwarmpools".to_owned()),
            "{other:?}"
        );
    }

    #[test]
    fn a_missing_right_is_told_with_the_rule_that_gives_it() {
        let settings = settings();
        let rights = needed(&settings, &Objects::default());
        let right = rights.iter().find(|right| right.resource == "pods").unwrap();
        let line = right.missing("rights in default").to_string();
        assert_eq!(
            line,
            "problem  rights in default: list of pods is not permitted: the server does not start; add to the server's \
             Role: {apiGroups: [\"\"], resources: [pods], verbs: [list]}"
        );
    }
}
