//! Where a Gateway is: its address and port, from its status, for as long as it is needed.
//!
//! A Gateway is an object of another project, of which a few fields matter here: so it is read as plain JSON.

use std::{fmt::Write as _, io, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{WatchStreamExt as _, watcher},
};
use serde::Deserialize;
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tracing::Instrument as _;

use super::{Endpoint, Trust};

/// How long a dial waits for a Gateway that has no address yet.
const WAIT: Duration = Duration::from_secs(5);

/// Which Gateway.
#[derive(Debug, Clone)]
pub(crate) struct GatewaySettings {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Which of its listeners; the first one of http or https if not given.
    pub(crate) listener: Option<String>,
    /// What to call it in `Host` and TLS; the listener's hostname, or its address, if not given.
    pub(crate) hostname: Option<String>,
    /// Whom to believe behind an https listener.
    pub(crate) trust: Trust,
}

/// A Gateway that is watched.
#[derive(Debug)]
pub(crate) struct Gateway {
    name: String,
    current: watch::Receiver<Current>,
    watching: JoinHandle<()>,
}

/// Where it is, or why that is not known.
type Current = Result<Arc<Endpoint>, String>;

#[derive(Debug, Default, Deserialize)]
struct Fields {
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    listeners: Vec<Listener>,
}

#[derive(Debug, Deserialize)]
struct Listener {
    name: String,
    port: u16,
    protocol: String,
    hostname: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    addresses: Vec<Address>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct Address {
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    message: String,
}

// === impl Gateway ===

impl Gateway {
    /// Begins to watch a Gateway.
    pub(crate) fn watch(client: Client, settings: GatewaySettings) -> Self {
        let kind = GroupVersionKind::gvk("gateway.networking.k8s.io", "v1", "Gateway");
        let api: Api<DynamicObject> = Api::namespaced_with(client, &settings.namespace, &ApiResource::from_gvk(&kind));
        let changes = watcher::watch_object(api, &settings.name).default_backoff();
        Self::follow(settings, changes)
    }

    fn follow(
        settings: GatewaySettings,
        changes: impl Stream<Item = watcher::Result<Option<DynamicObject>>> + Send + 'static,
    ) -> Self {
        let name = format!("{}/{}", settings.namespace, settings.name);
        let (sender, current) = watch::channel(Err("it has not been read yet".to_owned()));
        let span = tracing::debug_span!("task", name = "gateway", gateway = name);
        let following = async move {
            let mut changes = std::pin::pin!(changes);
            while let Some(change) = changes.next().await {
                let now = match change {
                    Ok(Some(object)) => locate(&settings, object.data),
                    Ok(None) => Err("there is none of that name".to_owned()),
                    // What was known before is as good as anything until the watch is back.
                    Err(error) if sender.borrow().is_ok() => {
                        tracing::warn!(%error, "the watch on the Gateway is interrupted");
                        continue;
                    }
                    Err(error) => Err(error.to_string()),
                };
                match &now {
                    Ok(endpoint) => tracing::info!(authority = %endpoint.authority, "the Gateway's address"),
                    Err(why) => tracing::warn!(why, "the Gateway can't be used"),
                }
                let _ = sender.send_replace(now);
            }
        };
        Self {
            name,
            current,
            watching: tokio::spawn(following.instrument(span)),
        }
    }

    /// Where it is now. One that has no address yet is waited for, for a moment.
    ///
    /// # Errors
    /// Why it can't be used.
    pub(super) async fn endpoint(&self) -> io::Result<Arc<Endpoint>> {
        let mut current = self.current.clone();
        let _ = timeout(WAIT, current.wait_for(Result::is_ok)).await;
        let now = current.borrow().clone();
        now.map_err(|why| io::Error::new(io::ErrorKind::NotConnected, format!("Gateway {}: {why}", self.name)))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Where the Gateway is, by its own word.
fn locate(settings: &GatewaySettings, object: serde_json::Value) -> Current {
    let fields: Fields = serde_json::from_value(object).map_err(|error| format!("it is not understood: {error}"))?;
    let wanted = |listener: &&Listener| match &settings.listener {
        Some(name) => listener.name == *name,
        None => matches!(listener.protocol.as_str(), "HTTP" | "HTTPS"),
    };
    let Some(listener) = fields.spec.listeners.iter().find(wanted) else {
        let which = settings.listener.as_deref().unwrap_or("for HTTP or HTTPS");
        return Err(format!("it has no listener {which}"));
    };
    let tls = match listener.protocol.as_str() {
        "HTTP" => None,
        "HTTPS" => Some(settings.trust.clone()),
        other => {
            return Err(format!(
                "its listener {} is for {other}, not for HTTP or HTTPS",
                listener.name
            ));
        }
    };
    let mut addresses = fields.status.addresses.iter().map(|address| address.value.as_str());
    let Some(address) = addresses.find(|value| !value.is_empty()) else {
        return Err(no_address(&fields.status.conditions));
    };
    let concrete = listener
        .hostname
        .as_deref()
        .filter(|name| !name.is_empty() && !name.starts_with('*'));
    let named = settings.hostname.as_deref().or(concrete);
    let endpoint = Endpoint::at(address, listener.port, tls, named);
    endpoint.map(Arc::new).map_err(|error| error.to_string())
}

fn no_address(conditions: &[Condition]) -> String {
    let mut why = "it has no address yet".to_owned();
    for condition in conditions.iter().filter(|condition| condition.status != "True") {
        let _ = write!(why, "; not {}: {}", condition.kind, condition.message);
    }
    why
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;

    impl Gateway {
        /// A Gateway whose status says these addresses, and stays so.
        pub(crate) fn fixed(addresses: &[&str], port: u16) -> Self {
            let mut data = object(addresses);
            data["spec"]["listeners"][1]["port"] = port.into();
            let once = futures_util::stream::iter([made(data)]);
            Self::follow(settings(), once.chain(futures_util::stream::pending()))
        }
    }

    fn made(data: serde_json::Value) -> watcher::Result<Option<DynamicObject>> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("g", "v1", "Gateway"));
        let mut made = DynamicObject::new("gw", &kind);
        made.data = data;
        Ok(Some(made))
    }

    fn settings() -> GatewaySettings {
        GatewaySettings {
            namespace: "ns".into(),
            name: "gw".into(),
            listener: None,
            hostname: None,
            trust: Trust::new(None).unwrap(),
        }
    }

    fn object(addresses: &[&str]) -> serde_json::Value {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|value| json!({"type": "IPAddress", "value": value}))
            .collect();
        json!({
            "spec": {"listeners": [
                {"name": "raw", "port": 9000, "protocol": "TCP"},
                {"name": "web", "port": 8080, "protocol": "HTTP", "hostname": "*.example"},
                {"name": "tls", "port": 443, "protocol": "HTTPS", "hostname": "router.example"},
            ]},
            "status": {
                "addresses": addresses,
                "conditions": [{"type": "Programmed", "status": "False", "message": "no capacity"}],
            },
        })
    }

    fn located(settings: &GatewaySettings, addresses: &[&str]) -> Result<String, String> {
        locate(settings, object(addresses)).map(|endpoint| endpoint.authority.to_string())
    }

    #[test]
    fn address_port_and_name_come_from_the_gateway() {
        let mut settings = settings();
        assert_eq!(located(&settings, &["10.0.0.1"]).unwrap(), "10.0.0.1:8080");
        assert_eq!(
            located(&settings, &["2001:db8::1", "10.0.0.1"]).unwrap(),
            "[2001:db8::1]:8080"
        );
        assert_eq!(located(&settings, &["lb.example"]).unwrap(), "lb.example:8080");
        settings.listener = Some("tls".into());
        assert_eq!(located(&settings, &["10.0.0.1"]).unwrap(), "router.example");
        settings.hostname = Some("mine.example".into());
        assert_eq!(located(&settings, &["10.0.0.1"]).unwrap(), "mine.example");
    }

    #[test]
    fn why_it_can_not_be_used_is_told() {
        let mut settings = settings();
        let why = located(&settings, &[]).unwrap_err();
        assert_eq!(why, "it has no address yet; not Programmed: no capacity");
        settings.listener = Some("raw".into());
        assert!(located(&settings, &["10.0.0.1"]).unwrap_err().contains("is for TCP"));
        settings.listener = Some("gone".into());
        assert!(
            located(&settings, &["10.0.0.1"])
                .unwrap_err()
                .contains("no listener gone")
        );
        assert!(
            locate(&settings, json!({"spec": 1}))
                .unwrap_err()
                .contains("not understood")
        );
    }

    #[tokio::test]
    async fn dials_use_the_address_of_now() {
        let (changes, mut received) = mpsc::channel(1);
        let stream = futures_util::stream::poll_fn(move |cx| received.poll_recv(cx));
        let gateway = Gateway::follow(settings(), stream);
        changes.send(made(object(&[]))).await.unwrap();
        changes.send(made(object(&["10.0.0.1"]))).await.unwrap();
        assert_eq!(gateway.endpoint().await.unwrap().authority, "10.0.0.1:8080");
        // A watch that fails takes nothing away.
        changes.send(Err(watcher::Error::NoResourceVersion)).await.unwrap();
        changes.send(made(object(&["10.0.0.2"]))).await.unwrap();
        let mut current = gateway.current.clone();
        let moved = |now: &Current| now.as_ref().is_ok_and(|now| now.authority == "10.0.0.2:8080");
        current.wait_for(moved).await.unwrap();
        assert_eq!(gateway.endpoint().await.unwrap().authority, "10.0.0.2:8080");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gateway_that_is_not_there_is_not_waited_for_for_ever() {
        let gone = futures_util::stream::iter([Ok(None)]).chain(futures_util::stream::pending());
        let gateway = Gateway::follow(settings(), gone);
        let error = gateway.endpoint().await.unwrap_err();
        assert!(
            error.to_string().contains("Gateway ns/gw: there is none of that name"),
            "{error}"
        );
    }
}
