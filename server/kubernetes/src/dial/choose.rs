//! Which way to take to a pod.
//!
//! What was asked for is taken, or refused when this server can't. Else the nearest way that works: the pod's own address
//! if the server is in the cluster and the pod answers, then the Gateway, then the tunnel, which always works. Whether
//! pods answer depends on the NetworkPolicy of their template, so that is tried once for each template.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use kube::Client;
use sandgate_errors::Refusal;
use sandgate_proto::v1::ConnectionMode;
use sandgate_provider::ByteStream;
use tokio::time::Instant;

use super::{Dial, Endpoint, Gateway, HttpWay, InCluster, Routed, Router, Target, Tunnel};
use crate::driver::Driver;

/// A NetworkPolicy drops, it does not refuse: who has not answered by then is taken to be hidden by one.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);
/// After this long it is tried again, in case a policy was lifted. That one was imposed is noticed by the dial that fails.
const HIDDEN_FOR: Duration = Duration::from_secs(60);

/// The ways that this server may use.
pub(crate) struct Modes {
    pub(crate) client: Client,
    /// The server runs in the cluster, and may so reach pods by their addresses.
    pub(crate) in_cluster: bool,
    pub(crate) gateway: Option<Arc<Gateway>>,
    pub(crate) direct: Option<Arc<Endpoint>>,
    pub(crate) verdicts: Arc<Verdicts>,
}

/// Whether the pods of a template answer at their own addresses.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Mutex<HashMap<String, Verdict>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Answers,
    HiddenUntil(Instant),
}

/// The way that was found to work, until it does not: then it is looked for again.
struct Auto {
    choice: Choice,
    template: String,
    target: Target,
    now: Mutex<Arc<dyn Dial>>,
}

/// What is needed to choose, apart from the pod.
#[derive(Clone)]
struct Choice {
    client: Client,
    in_cluster: bool,
    gateway: Option<Arc<Gateway>>,
    verdicts: Arc<Verdicts>,
    driver: Driver,
}

// === impl Modes ===

impl Modes {
    /// The way to a pod of `template` in which `driver` is at home, and why it is that one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT on `connection_mode` for a way that this server, or this driver, does not have.
    pub(crate) async fn choose(
        &self,
        wanted: ConnectionMode,
        template: &str,
        target: &Target,
        driver: Driver,
    ) -> Result<(Arc<dyn Dial>, String), Refusal> {
        let asked = || "asked for".to_owned();
        self.check(wanted, driver)?;
        let dial: Arc<dyn Dial> = match wanted {
            ConnectionMode::Unspecified | ConnectionMode::Local => {
                return Ok(self.auto(template, target, driver).await);
            }
            ConnectionMode::Tunnel => Arc::new(Tunnel::new(self.client.clone(), target)),
            ConnectionMode::InCluster => Arc::new(InCluster::new(target.addresses.clone())),
            ConnectionMode::Gateway => Arc::new(Routed::new(self.router_of_gateway()?, target.clone())),
            ConnectionMode::Direct => Arc::new(Routed::new(self.router_of_url()?, target.clone())),
        };
        Ok((dial, asked()))
    }

    /// Whether this server has that way, and `driver` can be spoken to on it.
    ///
    /// # Errors
    /// As of `choose`, before there is a pod.
    pub(crate) fn check(&self, wanted: ConnectionMode, driver: Driver) -> Result<(), Refusal> {
        match wanted {
            ConnectionMode::Unspecified | ConnectionMode::Tunnel => Ok(()),
            ConnectionMode::Local => Err(refused("it is the way of sandboxes on the server's own machine")),
            _ if driver == Driver::Exec => Err(refused(
                "images with only a shell are reached by the API server's exec, which is CONNECTION_MODE_TUNNEL",
            )),
            ConnectionMode::InCluster if self.in_cluster => Ok(()),
            ConnectionMode::InCluster => Err(refused(
                "this server does not run in the cluster; set kubernetes.in_cluster where pods can be reached nevertheless",
            )),
            ConnectionMode::Gateway | ConnectionMode::Direct if !driver.is_routable() => Err(refused(
                "the sandbox router carries no gRPC, which is what sandboxd speaks: use CONNECTION_MODE_TUNNEL or CONNECTION_MODE_IN_CLUSTER",
            )),
            ConnectionMode::Gateway => self.router_of_gateway().map(drop),
            ConnectionMode::Direct => self.router_of_url().map(drop),
        }
    }

    fn router_of_gateway(&self) -> Result<Router, Refusal> {
        let gateway = self.gateway.clone().map(Router::Gateway);
        gateway.ok_or_else(|| refused("no Gateway is configured: set kubernetes.gateway.name and its namespace"))
    }

    fn router_of_url(&self) -> Result<Router, Refusal> {
        let endpoint = self.direct.clone().map(Router::Direct);
        endpoint.ok_or_else(|| refused("no URL is configured: set kubernetes.direct.url"))
    }

    async fn auto(&self, template: &str, target: &Target, driver: Driver) -> (Arc<dyn Dial>, String) {
        let choice = Choice {
            client: self.client.clone(),
            in_cluster: self.in_cluster,
            gateway: self.gateway.clone(),
            verdicts: Arc::clone(&self.verdicts),
            driver,
        };
        let (dial, why) = choice.make(template, target).await;
        let auto = Auto {
            choice,
            template: template.to_owned(),
            target: target.clone(),
            now: Mutex::new(dial),
        };
        (Arc::new(auto), why)
    }
}

impl fmt::Debug for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Modes")
            .field("in_cluster", &self.in_cluster)
            .field("gateway", &self.gateway)
            .field("direct", &self.direct)
            .finish_non_exhaustive()
    }
}

fn refused(why: &str) -> Refusal {
    Refusal::invalid(
        "connection_mode",
        format!("the sandbox can't be reached that way: {why}"),
    )
}

// === impl Choice ===

impl Choice {
    async fn make(&self, template: &str, target: &Target) -> (Arc<dyn Dial>, String) {
        let tunnel = || Arc::new(Tunnel::new(self.client.clone(), target));
        if self.driver == Driver::Exec {
            return (
                tunnel(),
                "an image with only a shell is reached by the API server's exec".to_owned(),
            );
        }
        let not_direct = if self.in_cluster {
            match self.answers(template, target).await {
                Ok(()) => {
                    let why = "the server runs in the cluster and the pod answers".to_owned();
                    return (Arc::new(InCluster::new(target.addresses.clone())), why);
                }
                Err(why) => why,
            }
        } else {
            "the server does not run in the cluster".to_owned()
        };
        match &self.gateway {
            Some(gateway) if self.driver.is_routable() => {
                let dial = Routed::new(Router::Gateway(Arc::clone(gateway)), target.clone());
                (Arc::new(dial), format!("{not_direct}, and a Gateway is configured"))
            }
            Some(_) => (
                tunnel(),
                format!("{not_direct}, and sandboxd can't be reached through the router"),
            ),
            None => (tunnel(), format!("{not_direct}, and no Gateway is configured")),
        }
    }

    /// Whether pods of that template answer; if not, why that is thought.
    async fn answers(&self, template: &str, target: &Target) -> Result<(), String> {
        let hidden = || format!("the pod does not answer at its own address (within {ANSWER_WITHIN:?})");
        match self.verdicts.get(template) {
            Some(Verdict::Answers) => return Ok(()),
            Some(Verdict::HiddenUntil(_)) => return Err(hidden()),
            None => {}
        }
        let port = self.driver.port();
        match InCluster::new(target.addresses.clone())
            .connect(port, ANSWER_WITHIN)
            .await
        {
            Ok(_) => {
                self.verdicts.set(template, Verdict::Answers);
                Ok(())
            }
            // Refused by the pod, which says nothing of its template; or by a policy of the few that do.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(format!("the pod refuses connections to port {port} at its own address"))
            }
            Err(_) => {
                self.verdicts
                    .set(template, Verdict::HiddenUntil(Instant::now() + HIDDEN_FOR));
                Err(hidden())
            }
        }
    }
}

// === impl Verdicts ===

impl Verdicts {
    fn get(&self, template: &str) -> Option<Verdict> {
        let known = self.lock().get(template).copied();
        known.filter(|verdict| match verdict {
            Verdict::Answers => true,
            Verdict::HiddenUntil(end) => Instant::now() < *end,
        })
    }

    fn set(&self, template: &str, verdict: Verdict) {
        self.lock().insert(template.to_owned(), verdict);
    }

    fn forget(&self, template: &str) {
        self.lock().remove(template);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Verdict>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Auto ===

impl Auto {
    fn current(&self) -> Arc<dyn Dial> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After a dial that failed: chooses again. Answers the new way if it is another one.
    async fn other(&self, failed: &dyn Dial) -> Option<Arc<dyn Dial>> {
        self.choice.verdicts.forget(&self.template);
        let (chosen, why) = self.choice.make(&self.template, &self.target).await;
        if chosen.mode() == failed.mode() {
            return None;
        }
        tracing::info!(pod = self.target.pod, mode = ?chosen.mode(), why, "another way to the pod is tried");
        Some(chosen)
    }

    /// Takes a way that has just worked. One that failed too is not taken: a pod that is down is down on every way, and
    /// that must not make the tunnel everyone's way.
    fn keep(&self, works: Arc<dyn Dial>) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = works;
    }
}

impl fmt::Debug for Auto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Auto").field(&self.current()).finish()
    }
}

#[async_trait]
impl Dial for Auto {
    fn mode(&self) -> ConnectionMode {
        self.current().mode()
    }

    async fn open(&self, port: u16) -> io::Result<Box<dyn ByteStream>> {
        let current = self.current();
        let error = match current.open(port).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        let other = self.other(&*current).await.ok_or(error)?;
        let stream = other.open(port).await?;
        self.keep(other);
        Ok(stream)
    }

    async fn http(&self, port: u16) -> io::Result<HttpWay> {
        let current = self.current();
        let error = match current.http(port).await {
            Ok(way) => return Ok(way),
            Err(error) => error,
        };
        let other = self.other(&*current).await.ok_or(error)?;
        let way = other.http(port).await?;
        self.keep(other);
        Ok(way)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::HeaderMap;
    use tokio::net::TcpListener;

    use super::*;
    use crate::dial::testing::{BlackHole, GatewayAt, loopback};

    /// Modes whose API server nobody listens at.
    fn modes(in_cluster: bool) -> Modes {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        Modes {
            client: Client::try_from(config).unwrap(),
            in_cluster,
            gateway: None,
            direct: None,
            verdicts: Arc::default(),
        }
    }

    fn target(address: IpAddr) -> Target {
        Target {
            namespace: "ns".into(),
            sandbox: "box".into(),
            pod: "box".into(),
            addresses: vec![address],
        }
    }

    const AUTO: ConnectionMode = ConnectionMode::Unspecified;
    const PORT: u16 = 8888;

    async fn chosen(modes: &Modes, address: IpAddr, driver: Driver) -> (ConnectionMode, String) {
        let (dial, why) = modes.choose(AUTO, "t", &target(address), driver).await.unwrap();
        (dial.mode(), why)
    }

    #[tokio::test]
    async fn a_pod_that_answers_is_reached_by_its_address() {
        let pod = loopback();
        let _listener = TcpListener::bind((pod, PORT)).await.unwrap();
        let (mode, why) = chosen(&modes(true), pod, Driver::Runtime).await;
        assert_eq!(mode, ConnectionMode::InCluster, "{why}");
        let (mode, why) = chosen(&modes(false), pod, Driver::Runtime).await;
        assert_eq!(mode, ConnectionMode::Tunnel, "{why}");
        let (mode, why) = chosen(&modes(true), pod, Driver::Exec).await;
        assert_eq!(mode, ConnectionMode::Tunnel, "{why}");
    }

    #[tokio::test]
    async fn a_pod_that_is_silent_is_reached_by_the_gateway_or_the_tunnel() {
        let pod = loopback();
        let _hole = BlackHole::at((pod, PORT).into()).await;
        let mut modes = modes(true);
        let (mode, why) = chosen(&modes, pod, Driver::Runtime).await;
        assert_eq!(mode, ConnectionMode::Tunnel);
        assert!(why.contains("does not answer") && why.contains("no Gateway"), "{why}");
        modes.gateway = Some(Arc::new(GatewayAt::nowhere()));
        assert_eq!(chosen(&modes, pod, Driver::Runtime).await.0, ConnectionMode::Gateway);
        // gRPC does not pass the router.
        assert_eq!(chosen(&modes, pod, Driver::Sandboxd).await.0, ConnectionMode::Tunnel);
    }

    #[tokio::test]
    async fn the_verdict_is_kept_for_a_template_and_forgotten_when_a_dial_fails() {
        let modes = modes(true);
        let (answers, hidden) = (loopback(), loopback());
        let _hole = BlackHole::at((hidden, PORT).into()).await;
        let listener = TcpListener::bind((answers, PORT)).await.unwrap();
        assert_eq!(
            chosen(&modes, answers, Driver::Runtime).await.0,
            ConnectionMode::InCluster
        );
        // No probe: this one would not answer.
        let (dial, _) = modes.choose(AUTO, "t", &target(hidden), Driver::Runtime).await.unwrap();
        assert_eq!(dial.mode(), ConnectionMode::InCluster);
        assert_eq!(
            modes
                .choose(AUTO, "other", &target(hidden), Driver::Runtime)
                .await
                .unwrap()
                .0
                .mode(),
            ConnectionMode::Tunnel
        );
        drop(listener);
        // It fails here, and by the tunnel too, as there is no API server.
        let (refused, _) = modes
            .choose(AUTO, "t", &target(answers), Driver::Runtime)
            .await
            .unwrap();
        assert!(refused.open(PORT).await.is_err());
        assert_eq!(
            refused.mode(),
            ConnectionMode::InCluster,
            "no way that does not work is taken"
        );
        assert_eq!(modes.verdicts.get("t"), None);
        // A pod that refuses says nothing of its template.
        assert_eq!(chosen(&modes, answers, Driver::Runtime).await.0, ConnectionMode::Tunnel);
        assert_eq!(modes.verdicts.get("t"), None);
    }

    #[tokio::test]
    async fn a_pod_that_a_policy_hides_later_is_reached_another_way() {
        let (pod, router) = (loopback(), loopback());
        let listener = TcpListener::bind((pod, PORT)).await.unwrap();
        let behind = TcpListener::bind((router, 0)).await.unwrap();
        let mut modes = modes(true);
        modes.gateway = Some(Arc::new(GatewayAt::address(behind.local_addr().unwrap())));
        let (dial, _) = modes
            .choose(AUTO, "t", &target(pod), Driver::PythonRuntime)
            .await
            .unwrap();
        assert_eq!(dial.mode(), ConnectionMode::InCluster);
        drop(listener);
        let way = dial.http(PORT).await.unwrap();
        assert_eq!(way.headers["x-sandbox-id"], "box");
        assert_eq!(dial.mode(), ConnectionMode::Gateway);
    }

    #[tokio::test]
    async fn what_is_not_configured_is_refused_with_what_to_configure() {
        let mut modes = modes(false);
        let pod = target(loopback());
        for (mode, hint) in [
            (ConnectionMode::Gateway, "kubernetes.gateway"),
            (ConnectionMode::Direct, "kubernetes.direct.url"),
            (ConnectionMode::InCluster, "kubernetes.in_cluster"),
            (ConnectionMode::Local, "server's own machine"),
        ] {
            let refusal = modes.choose(mode, "t", &pod, Driver::Runtime).await.unwrap_err();
            assert_eq!(refusal.field.as_deref(), Some("connection_mode"));
            assert!(refusal.message.contains(hint), "{refusal}");
        }
        modes.direct = Some(Arc::new(
            Endpoint::parse("http://router", None, HeaderMap::new()).unwrap(),
        ));
        let (dial, why) = modes
            .choose(ConnectionMode::Direct, "t", &pod, Driver::Runtime)
            .await
            .unwrap();
        assert_eq!((dial.mode(), why.as_str()), (ConnectionMode::Direct, "asked for"));
        for (mode, driver) in [
            (ConnectionMode::Direct, Driver::Sandboxd),
            (ConnectionMode::Gateway, Driver::Exec),
            (ConnectionMode::InCluster, Driver::Exec),
        ] {
            assert!(
                modes.choose(mode, "t", &pod, driver).await.is_err(),
                "{mode:?} {driver:?}"
            );
        }
    }
}
