//! The way to what runs in one pod: chosen at the first call, the same for all later ones, with a token for each call.

use std::{
    fmt, io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use http::HeaderValue;
use k8s_openapi::api::core::v1::Pod;
use sandgate_auth::{Claims, Scope};
use sandgate_proto::v1::{Connection, ConnectionMode};
use sandgate_provider::{ByteStream, Carrier, Link, limits::time};
use tokio::sync::OnceCell;

use crate::{
    dial::Target,
    driver::{Driver, Home},
    ending,
    memo::{Memo, Started},
    notes::Notes,
    shared::Shared,
    view::unix_ms,
    world::{Key, template_name},
};

/// How long a token is good for, and after how long another one is made.
const TOKEN_LIFE: Duration = Duration::from_secs(60);
const TOKEN_RENEWAL: Duration = Duration::from_secs(30);

/// A way to one start of one pod.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    pub(crate) link: Link,
    pub(crate) start: PodStart,
    way: Arc<Way>,
}

/// One start of what runs in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodStart {
    pub(crate) uid: String,
    pub(crate) restarts: i32,
}

/// The bytes and the tokens.
struct Way {
    shared: Weak<Shared>,
    key: Key,
    claim_uid: String,
    driver: Driver,
    wanted: ConnectionMode,
    template: String,
    audience: String,
    /// UID of the pod.
    start_uid: String,
    home: Home,
    /// Known once it was reached.
    carrier: OnceCell<Arc<dyn Carrier>>,
    /// Known once it has told.
    incarnation: Mutex<Option<String>>,
    token: Mutex<Option<(HeaderValue, Instant)>>,
}

// === impl PodStart ===

impl PodStart {
    pub(crate) fn of(pod: &Pod, container: Option<&str>) -> Self {
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            restarts: ending::restarts(pod, container),
        }
    }

    pub(crate) fn is_of(&self, started: &Started) -> bool {
        self.uid == started.pod_uid && self.restarts == started.restarts
    }
}

// === impl Shared ===

impl Shared {
    /// The way to a pod of a claim: the one that there is, or a new one.
    pub(crate) fn reach(self: &Arc<Self>, key: &Key) -> Option<Reach> {
        let found = self.world.look(key, |facts, entry| {
            let pod = facts.pod?;
            let start = PodStart::of(pod, facts.container);
            let started = facts.memo.started.as_ref().filter(|started| start.is_of(started));
            let incarnation = started.map(|started| started.incarnation.clone());
            Some((start, incarnation, entry.uid().to_owned()))
        });
        let (start, incarnation, claim_uid) = found??;
        let mut links = self.links();
        if let Some(reach) = links
            .get(key)
            .filter(|reach| reach.start == start && reach.way.claim_uid == claim_uid)
        {
            if let Some(incarnation) = incarnation {
                reach.know(&incarnation);
            }
            return Some(reach.clone());
        }
        let (home, memo) = self.world.look(key, |facts, entry| {
            let home = home(key, facts.pod?, &start, facts.container);
            Some((home, entry.memo.clone()))
        })??;
        let way = Arc::new(self.way(key, claim_uid, home, start.uid.clone(), &memo, incarnation));
        let reach = Reach {
            link: Link::new(Arc::clone(&way) as Arc<dyn Carrier>),
            start,
            way,
        };
        links.insert(key.clone(), reach.clone());
        Some(reach)
    }

    /// The connection mode: the caller's, else the template's, else the server's.
    pub(crate) fn wanted_mode(&self, of_caller: ConnectionMode, of_template: ConnectionMode) -> ConnectionMode {
        let given = [of_caller, of_template, self.settings.connection];
        let given = given.into_iter().find(|mode| *mode != ConnectionMode::Unspecified);
        given.unwrap_or_default()
    }

    /// Whether something runs in a sandbox that only this server knows of.
    pub(crate) fn is_busy(&self, key: &Key) -> bool {
        self.links()
            .get(key)
            .is_some_and(|reach| reach.link.carrier().is_busy())
    }

    fn way(
        self: &Arc<Self>,
        key: &Key,
        claim_uid: String,
        home: Home,
        start_uid: String,
        memo: &Memo,
        incarnation: Option<String>,
    ) -> Way {
        let template = template_name(&memo.template).to_owned();
        let notes = self
            .world
            .known()
            .template(&key.namespace, &template)
            .and_then(|template| Notes::read(template).ok());
        let of_template = notes.map_or(ConnectionMode::Unspecified, |notes| notes.connection);
        Way {
            shared: Arc::downgrade(self),
            key: key.clone(),
            claim_uid,
            audience: format!("{}/{}/{}", self.settings.trust_domain, key.namespace, home.target.pod),
            driver: memo.driver,
            wanted: self.wanted_mode(memo.connection_mode(), of_template),
            template: Key::new(&key.namespace, &template).to_string(),
            start_uid,
            home,
            carrier: OnceCell::new(),
            incarnation: Mutex::new(incarnation),
            token: Mutex::default(),
        }
    }
}

/// One start of what runs in a pod, for whoever speaks to it.
fn home(key: &Key, pod: &Pod, start: &PodStart, container: Option<&str>) -> Home {
    let status = pod.status.as_ref();
    let addresses = status.and_then(|status| status.pod_ips.as_ref());
    let name = pod.metadata.name.clone().unwrap_or_default();
    let running = ending::main_container(pod, container).and_then(|status| status.state.as_ref()?.running.as_ref());
    let started_at = running.and_then(|running| running.started_at.as_ref());
    Home {
        target: Target {
            namespace: key.namespace.clone(),
            sandbox: name.clone(),
            pod: name,
            addresses: addresses
                .into_iter()
                .flatten()
                .filter_map(|ip| ip.ip.parse().ok())
                .collect(),
        },
        container: container.map(str::to_owned),
        incarnation: format!("{}-{}", start.uid, start.restarts),
        started_at: started_at.map_or_else(SystemTime::now, |at| time(unix_ms(at))),
    }
}

// === impl Reach ===

impl Reach {
    /// Whether what runs inside keeps deadline and idle limit itself.
    pub(crate) fn keeps_limits(&self) -> bool {
        self.way.driver == Driver::Runtime
    }

    /// From now on tokens are for this incarnation alone.
    pub(crate) fn know(&self, incarnation: &str) {
        let mut known = self.way.incarnation.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_deref() != Some(incarnation) {
            *known = Some(incarnation.to_owned());
            *self.way.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

// === impl Way ===

impl Way {
    async fn carrier(&self) -> io::Result<&Arc<dyn Carrier>> {
        let choose = async {
            let shared = self
                .shared
                .upgrade()
                .ok_or_else(|| io::Error::other("the server is stopping"))?;
            let chosen = shared
                .modes
                .choose(self.wanted, &self.template, &self.home.target, self.driver)
                .await;
            let (dial, why) = chosen.map_err(|refusal| io::Error::other(refusal.message))?;
            let connection = Connection {
                mode: dial.mode().into(),
                why,
            };
            let env = match self.driver {
                // It keeps what it was told when it was greeted.
                Driver::Runtime => Vec::new(),
                _ => shared
                    .env_of(&self.key)
                    .map_err(|refusal| io::Error::other(refusal.message))?,
            };
            shared.world.set_connection(&self.key, &self.claim_uid, connection);
            Ok::<_, io::Error>(shared.drivers.carrier(self.driver, dial, self.home.clone(), env))
        };
        self.carrier.get_or_try_init(|| choose).await
    }

    fn sign(&self) -> Option<HeaderValue> {
        let shared = self.shared.upgrade()?;
        let signer = shared.signer.as_ref()?;
        let incarnation = self.incarnation.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let scope = if incarnation.is_some() {
            Scope::Runtime
        } else {
            Scope::Hello
        };
        let mut claims = Claims::new(&self.audience, scope, TOKEN_LIFE);
        claims.pod_uid = Some(self.start_uid.clone());
        claims.incarnation = incarnation;
        let mut value = HeaderValue::try_from(format!("Bearer {}", signer.token(&claims))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[async_trait]
impl Carrier for Way {
    fn mode(&self) -> ConnectionMode {
        self.carrier.get().map_or(self.wanted, |carrier| carrier.mode())
    }

    async fn open(&self) -> io::Result<Box<dyn ByteStream>> {
        self.carrier().await?.open().await
    }

    fn is_busy(&self) -> bool {
        self.carrier.get().is_some_and(|carrier| carrier.is_busy())
    }

    fn credential(&self) -> Option<HeaderValue> {
        if self.driver != Driver::Runtime {
            return None;
        }
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        match &*token {
            Some((value, made)) if made.elapsed() < TOKEN_RENEWAL => return Some(value.clone()),
            _ => {}
        }
        let value = self.sign()?;
        *token = Some((value.clone(), Instant::now()));
        Some(value)
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way")
            .field("key", &self.key)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}
