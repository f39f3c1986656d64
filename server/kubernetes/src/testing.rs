//! A provider whose API server is a function, for what can be told from requests and answers alone.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use sandgate_auth::{NewKey, Signer};
use sandgate_provider::{Table, limits::Spans};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::service_fn;

use crate::{
    api::{Claim, Resources, Template, Version},
    dial::Modes,
    driver::Drivers,
    memo::{MANAGED_BY, MANAGER, MEMO, Memo},
    settings::Settings,
    shared::Shared,
    world::{Key, World},
};

/// What was asked of the API server.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

/// Everything that was asked, in order.
pub(crate) type Log = Arc<Mutex<Vec<Asked>>>;

/// A provider with a template `plain` in namespace `ns`, and what it asked.
pub(crate) fn provider(answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static) -> (Arc<Shared>, Log) {
    let log = Log::default();
    let (answer, asked) = (Arc::new(answer), Arc::clone(&log));
    let service = service_fn(move |request: Request<Body>| {
        let (answer, log) = (Arc::clone(&answer), Arc::clone(&asked));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let asked = Asked {
                method: head.method.to_string(),
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            log.lock().unwrap().push(asked.clone());
            let (status, body) = answer(&asked);
            let response = Response::builder()
                .status(status)
                .body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let client = Client::new(service, "ns");
    let keys = tempfile::tempdir().unwrap();
    std::fs::write(keys.path().join("a.pem"), NewKey::generate().unwrap().pem).unwrap();
    let settings = settings();
    let world = World::new(Arc::new(Table::new("e")), vec!["ns".to_owned()], settings.image_grace);
    let template: Template = serde_json::from_value(json!({
        "metadata": {"name": "plain", "namespace": "ns", "uid": "t"}, "spec": {},
    }))
    .unwrap();
    world
        .known()
        .templates
        .insert(Key::new("ns", "plain"), Arc::new(template));
    let shared = Shared {
        resources: Resources::of(Version::V1beta1),
        signer: Some(Arc::new(Signer::open(keys.path()).unwrap())),
        modes: Modes {
            client: client.clone(),
            in_cluster: false,
            gateway: None,
            direct: None,
            verdicts: Arc::default(),
        },
        drivers: Drivers::new(client.clone()),
        client,
        settings,
        world: Arc::new(world),
        links: Mutex::new(HashMap::new()),
        births: Mutex::new(HashSet::new()),
        pool_maker: tokio::sync::Mutex::new(()),
        uses: Mutex::new(HashMap::new()),
        closing: watch::Sender::new(false),
    };
    (Arc::new(shared), log)
}

/// What a provider works with that has one namespace, `ns`.
pub(crate) fn settings() -> Settings {
    Settings {
        kubeconfig: None,
        context: None,
        namespaces: vec!["ns".to_owned()],
        default_template: "plain".to_owned(),
        make_pools: true,
        trust_domain: "test".to_owned(),
        keys_dir: None,
        connection: Default::default(),
        in_cluster: Some(false),
        gateway: None,
        direct: None,
        image_grace: Duration::from_secs(60),
        spans: Spans::default(),
        default_ttl: Some(Duration::from_secs(3600)),
        identity: "test".to_owned(),
    }
}

/// A claim of ours as the API server has it.
pub(crate) fn claim(name: &str, uid: &str, version: u32, memo: &Memo) -> Value {
    json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {
            "name": name, "namespace": "ns", "uid": uid, "resourceVersion": version.to_string(),
            "labels": {MANAGED_BY: MANAGER}, "annotations": {MEMO: memo.to_json()},
        },
        "spec": {"warmPoolRef": {"name": "pool"}},
    })
}

/// The same as an object.
pub(crate) fn claim_object(value: &Value) -> Claim {
    serde_json::from_value(value.clone()).unwrap()
}

/// What the API server says when it refuses.
pub(crate) fn refusal(code: u16) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "refused", "reason": "Test", "code": code,
    });
    (code, status)
}
