//! Is everything there that sandboxes in a cluster need? Looked at with the server's own rights and settings, and
//! without changing anything: whoever set it up is told what is missing, and what to do.

mod objects;
mod rights;
#[cfg(test)]
mod testing;
mod ways;

use std::{error::Error, future::Future, time::Duration};

use kube::Client;
use sandgate_auth::Signer;
use sandgate_provider::Finding;
use tokio::time::timeout;

use self::objects::Objects;
use crate::{
    api::{CORE, DiscoveryError, EXTENSIONS, Resources, Version},
    client::client,
    settings::Settings,
};

/// How long the API server may take for one answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The oldest minor version of Kubernetes 1 that we know to work.
const OLDEST: u32 = 30;

/// Takes findings as they are made.
type Say<'a> = dyn FnMut(Finding) + 'a;

/// Examines a cluster. Each finding is told as soon as it is made; it goes on for as long as there is something to go on
/// with.
pub async fn examine(settings: &Settings, say: &mut (dyn FnMut(Finding) + '_)) {
    let signer = keys(settings, say);
    let Some(client) = cluster(settings, say).await else {
        return;
    };
    let Some(resources) = agent_sandbox(&client, say).await else {
        return;
    };
    let objects = Objects::look(&client, &resources, settings, say).await;
    rights::check(&client, settings, &objects, say).await;
    if let Some(signer) = &signer {
        objects::published(&client, signer, &objects, say).await;
    }
    ways::check(&client, settings, say).await;
}

/// Waits for an answer, but not for ever.
async fn within<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(|error| told(&error)),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

/// What went wrong, for people: kube shows all of an answer.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => chain(other),
    }
}

/// An error with all its causes: what failed is often only in the last.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn keys(settings: &Settings, say: &mut Say<'_>) -> Option<Signer> {
    const WHAT: &str = "keys";
    let Some(dir) = &settings.keys_dir else {
        let advice = "make keys with `sandgate-server keys new DIR` and set kubernetes.keys_dir";
        let detail = "there are none, so only drivers that want no token can be used";
        say(Finding::warning(WHAT, detail, advice));
        return None;
    };
    match Signer::open(dir) {
        Ok(signer) => {
            let keyring = signer.keyring();
            let ids: Vec<&str> = keyring.secrets().map(|(id, _)| id).collect();
            let first = ids.first().copied().unwrap_or_default();
            say(Finding::ok(WHAT, format!("{first} signs, of {} in all", ids.len())));
            Some(signer)
        }
        Err(error) => {
            let advice = "`sandgate-server keys new DIR` makes one";
            say(Finding::problem(WHAT, error.to_string(), advice));
            None
        }
    }
}

async fn cluster(settings: &Settings, say: &mut Say<'_>) -> Option<Client> {
    const WHAT: &str = "cluster";
    let client = match client(settings).await {
        Ok(client) => client,
        Err(error) => {
            let advice = "set kubernetes.kubeconfig or KUBECONFIG, or run the server in a pod";
            say(Finding::problem(WHAT, chain(&error), advice));
            return None;
        }
    };
    match within(client.apiserver_version()).await {
        Ok(version) => {
            let detail = format!("Kubernetes {}", version.git_version);
            let minor = version.minor.trim_end_matches('+').parse::<u32>();
            say(match minor {
                Ok(minor) if version.major == "1" && minor < OLDEST => {
                    Finding::warning(WHAT, detail, format!("1.{OLDEST} or newer is known to work"))
                }
                _ => Finding::ok(WHAT, detail),
            });
            Some(client)
        }
        Err(error) => {
            let advice = "is the address in the kubeconfig right, and are the credentials still valid?";
            say(Finding::problem(WHAT, format!("the API server: {error}"), advice));
            None
        }
    }
}

/// What of agent-sandbox the cluster serves.
async fn agent_sandbox(client: &Client, say: &mut Say<'_>) -> Option<Resources> {
    const WHAT: &str = "agent-sandbox";
    const INSTALL: &str = "install agent-sandbox with its extensions (CRDs, and --extensions of the controller)";
    let version = match timeout(PATIENCE, Version::discover(client)).await {
        Ok(Ok(version)) => version,
        Ok(Err(error)) => {
            let advice = match error {
                DiscoveryError::Version(_) => "update the older of the two",
                DiscoveryError::Api(_) => "let the server ask for /apis, which everybody may by default",
                DiscoveryError::Absent => "",
            };
            say(Finding::problem(WHAT, chain(&error), advice));
            return None;
        }
        Err(_) => {
            let detail = format!("the API server did not say what it serves within {PATIENCE:?}");
            say(Finding::problem(WHAT, detail, ""));
            return None;
        }
    };
    let mut served = Vec::new();
    for group in [EXTENSIONS, CORE] {
        let of_group = format!("{group}/{}", version.as_str());
        match within(client.list_api_group_resources(&of_group)).await {
            Ok(list) => served.extend(list.resources.into_iter().map(|resource| resource.name)),
            Err(error) => say(Finding::problem(WHAT, format!("{group}: {error}"), INSTALL)),
        }
    }
    let resources = Resources::of(version);
    let ours = [
        &resources.claims,
        &resources.sandboxes,
        &resources.templates,
        &resources.pools,
    ];
    let missing: Vec<&str> = ours
        .iter()
        .map(|resource| resource.plural.as_str())
        .filter(|plural| !served.iter().any(|name| name == plural))
        .collect();
    if !missing.is_empty() {
        let detail = format!("{} does not have {}", version.as_str(), missing.join(", "));
        say(Finding::problem(WHAT, detail, INSTALL));
        return None;
    }
    say(match version {
        Version::V1beta1 => Finding::ok(WHAT, "v1beta1 is served"),
        Version::V1alpha1 => Finding::warning(
            WHAT,
            "only v1alpha1 is served",
            "it works; agent-sandbox 1.0 or newer has v1beta1",
        ),
    });
    Some(resources)
}
