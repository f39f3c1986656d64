//! The provider: finds and makes claims, and reaches what is behind them.

use std::{
    collections::{HashMap, HashSet},
    env,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use kube::Client;
use sandgate_auth::{KeyError, Signer};
use sandgate_errors::Refusal;
use sandgate_proto::v1::{ErrorReason, Sandbox, SandboxState, Usage};
use sandgate_provider::{Begun, Change, Link, Name, NewSandbox, Provider, Removed, Selector, Table, limits::timestamp};
use tokio::{sync::watch, task, time};

use crate::{
    api::{DiscoveryError, Resources, Version},
    client::client,
    dial::{self, Endpoint, EndpointError, Gateway, Modes, Trust},
    driver::Drivers,
    settings::Settings,
    shared::{RETRY_AFTER, Shared, not_found, stopping},
    view::{self, now_ms},
    watch::{FIRST_LISTS, Watches},
    world::World,
};

/// Connections that nobody used for this long are let go.
const REST: Duration = Duration::from_secs(60);
/// Between two looks for such.
const LOOK: Duration = Duration::from_secs(20);

/// Sandboxes of a cluster.
#[derive(Debug)]
pub struct Kubernetes {
    shared: Arc<Shared>,
    watches: Mutex<Option<Watches>>,
}

/// Why there is no provider.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The way to the cluster.
    #[error("the way to the cluster is not known: {0}")]
    Kubeconfig(String),
    /// The client can't be made.
    #[error("can't speak to the cluster: {0}")]
    Client(#[from] kube::Error),
    /// What the cluster serves.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The keys.
    #[error("kubernetes.keys_dir: {0}")]
    Keys(#[from] KeyError),
    /// The gateway or the URL.
    #[error("{key}: {problem}")]
    Endpoint {
        /// Which setting.
        key: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The first look took too long.
    #[error(
        "the cluster did not list claims, pods, templates and pools of {0} within 30 s: does the server's role permit list and watch there?"
    )]
    Watches(String),
}

// === impl Kubernetes ===

impl Kubernetes {
    /// Connects to the cluster, and waits until all that is there was seen once.
    ///
    /// # Errors
    /// When the cluster can't be reached, or lacks what is needed.
    pub async fn open(settings: Settings, table: Table) -> Result<Self, OpenError> {
        let client = client(&settings).await?;
        let version = Version::discover(&client).await?;
        let resources = Resources::of(version);
        let signer = settings.keys_dir.as_ref().map(Signer::open).transpose()?.map(Arc::new);
        let modes = modes(&settings, &client)?;
        let table = Arc::new(table);
        let world = World::new(table, settings.namespaces.clone(), settings.image_grace);
        let world = Arc::new(world);
        let watches = Watches::start(&client, &resources, &settings.namespaces, &world);
        let late = |_| OpenError::Watches(settings.namespaces.join(", "));
        time::timeout(FIRST_LISTS, watches.seen()).await.map_err(late)?;
        tracing::info!(
            api = version.as_str(), namespaces = ?settings.namespaces, sandboxes = world.table().len(), "found the cluster"
        );
        let shared = Arc::new(Shared {
            drivers: Drivers::new(client.clone()),
            client,
            resources,
            settings,
            signer,
            modes,
            world,
            links: Mutex::new(HashMap::new()),
            births: Mutex::new(HashSet::new()),
            pool_maker: tokio::sync::Mutex::new(()),
            uses: Mutex::new(HashMap::new()),
            closing: watch::Sender::new(false),
        });
        tokio::spawn(Arc::clone(&shared).look_after_all());
        tokio::spawn(Arc::clone(&shared).rest_connections());
        tokio::spawn(Arc::clone(&shared).keep_leases());
        Ok(Self {
            shared,
            watches: Mutex::new(Some(watches)),
        })
    }

    /// Lets go of everything and leaves the sandboxes alone.
    pub async fn close(&self) {
        self.shared.closing.send_replace(true);
        let watches = self.watches.lock().ok().and_then(|mut watches| watches.take());
        if let Some(watches) = watches {
            watches.stop().await;
        }
    }
}

pub(crate) fn modes(settings: &Settings, client: &Client) -> Result<Modes, OpenError> {
    let of = |key: &'static str| {
        move |error: EndpointError| OpenError::Endpoint {
            key,
            problem: error.to_string(),
        }
    };
    let gateway = settings.gateway.as_ref().map(|gateway| {
        let trust = Trust::new(gateway.ca_pem.as_deref()).map_err(of("kubernetes.gateway"))?;
        let settings = dial::GatewaySettings {
            namespace: gateway.namespace.clone(),
            name: gateway.name.clone(),
            listener: gateway.listener.clone(),
            hostname: gateway.hostname.clone(),
            trust,
        };
        Ok::<_, OpenError>(Arc::new(Gateway::watch(client.clone(), settings)))
    });
    let direct = settings.direct.as_ref().map(|direct| {
        let endpoint = Endpoint::parse(&direct.url, direct.ca_pem.as_deref(), direct.headers.clone());
        endpoint.map(Arc::new).map_err(of("kubernetes.direct"))
    });
    Ok(Modes {
        client: client.clone(),
        in_cluster: in_cluster(settings),
        gateway: gateway.transpose()?,
        direct: direct.transpose()?,
        verdicts: Arc::default(),
    })
}

/// Whether pods may be reached by their addresses.
pub(crate) fn in_cluster(settings: &Settings) -> bool {
    let in_a_pod = || env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    settings.in_cluster.unwrap_or_else(in_a_pod)
}

// === impl Shared ===

impl Shared {
    async fn rest_connections(self: Arc<Self>) {
        let mut closing = self.closing.subscribe();
        loop {
            tokio::select! {
                _ = closing.wait_for(|closing| *closing) => return,
                () = time::sleep(LOOK) => {}
            }
            for reach in self.links().values() {
                reach.link.rest(REST);
            }
        }
    }
}

#[async_trait]
impl Provider for Kubernetes {
    fn name(&self) -> &'static str {
        view::NAME
    }

    fn table(&self) -> &Arc<Table> {
        self.shared.table()
    }

    async fn create(&self, wanted: NewSandbox) -> Result<Begun, Refusal> {
        let shared = Arc::clone(&self.shared);
        // On its own, so that it goes on when the caller leaves.
        unbroken(async move { shared.create(wanted).await }).await
    }

    async fn seek(&self, name: &Name) -> bool {
        let Some(key) = self.shared.seek(name).await else {
            return false;
        };
        self.shared.settle(&[key]).await;
        true
    }

    async fn refresh(&self, selector: &Selector) -> Result<(), Refusal> {
        self.shared.refresh(selector).await
    }

    async fn ready(&self, name: &Name, uid: &str) -> Result<Arc<Sandbox>, Refusal> {
        let mut ticks = self.table().ticks();
        loop {
            ticks.mark_unchanged();
            let known = self.table().get(name.as_str()).filter(|known| known.uid == uid);
            let Some(sandbox) = known else {
                return Err(self.shared.world.refusal(uid).unwrap_or_else(|| not_found(name)));
            };
            match sandbox.state() {
                SandboxState::Ready => return Ok(sandbox),
                SandboxState::Failed => return Err(has_failed(&sandbox)),
                SandboxState::Suspended | SandboxState::Suspending => return Err(is_suspended(name)),
                _ if self.shared.is_closing() => return Err(stopping()),
                _ => {}
            }
            self.shared.news(&mut ticks, LOOK).await;
        }
    }

    async fn resume(&self, name: &Name) -> Result<Begun, Refusal> {
        let (shared, name) = (Arc::clone(&self.shared), name.clone());
        unbroken(async move { shared.resume(&name).await }).await
    }

    async fn suspend(&self, name: &Name, incarnation: Option<&str>, grace: Duration) -> Result<Arc<Sandbox>, Refusal> {
        let (shared, name) = (Arc::clone(&self.shared), name.clone());
        let incarnation = incarnation.map(str::to_owned);
        unbroken(async move { shared.suspend(&name, incarnation.as_deref(), grace).await }).await
    }

    async fn update(&self, name: &Name, change: Change) -> Result<Arc<Sandbox>, Refusal> {
        let (shared, name) = (Arc::clone(&self.shared), name.clone());
        unbroken(async move { shared.update(&name, change).await }).await
    }

    async fn delete(&self, name: &Name, uid: Option<&str>, grace: Option<Duration>) -> Result<Removed, Refusal> {
        let (shared, name) = (Arc::clone(&self.shared), name.clone());
        let uid = uid.map(str::to_owned);
        unbroken(async move { shared.delete(&name, uid.as_deref(), grace).await }).await
    }

    async fn usage(&self, name: &Name) -> Result<Usage, Refusal> {
        let key = self.shared.world.find(name).ok_or_else(|| not_found(name))?;
        let limits = self
            .shared
            .world
            .look(&key, |facts, _| facts.pod.map(crate::usage::limits));
        let mut usage = limits.flatten().unwrap_or_default();
        usage.measured_at = Some(timestamp(now_ms()));
        Ok(usage)
    }

    fn link(&self, name: &Name) -> Result<(Arc<Sandbox>, Link), Refusal> {
        let sandbox = self.table().get(name.as_str()).ok_or_else(|| not_found(name))?;
        match sandbox.state() {
            SandboxState::Ready => {
                let key = self.shared.world.find(name).ok_or_else(|| not_found(name))?;
                let reach = self.shared.reach(&key).ok_or_else(|| starting(name))?;
                if !reach.keeps_limits() {
                    self.shared.used(&key);
                }
                Ok((sandbox, reach.link))
            }
            SandboxState::Suspended | SandboxState::Suspending => Err(is_suspended(name)),
            SandboxState::Failed => Err(has_failed(&sandbox)),
            SandboxState::Deleting => Err(is_leaving(name, &sandbox)),
            _ => Err(starting(name)),
        }
    }
}

/// Runs on when the caller leaves.
async fn unbroken<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let fault = |error: task::JoinError| Refusal::new(ErrorReason::Internal, error.to_string());
    task::spawn(work).await.map_err(fault)?
}

fn starting(name: &Name) -> Refusal {
    let message = format!("sandbox {name} is being started; try again in a moment");
    Refusal::new(ErrorReason::SandboxUnreachable, message).with_retry_after(RETRY_AFTER)
}

fn is_suspended(name: &Name) -> Refusal {
    let message = format!("sandbox {name} is suspended; resume it, or ask for auto_resume");
    Refusal::new(ErrorReason::SandboxSuspended, message)
}

fn is_leaving(name: &Name, sandbox: &Sandbox) -> Refusal {
    match sandbox.state_message.as_str() {
        "" => not_found(name),
        why => Refusal::new(
            ErrorReason::SandboxNotFound,
            format!("sandbox {name} is being removed ({why})"),
        ),
    }
}

fn has_failed(sandbox: &Sandbox) -> Refusal {
    Refusal::new(ErrorReason::SandboxFailed, &sandbox.state_message)
}
