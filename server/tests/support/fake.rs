//! A provider that makes nothing: its sandboxes are entries in a table, and what runs in one is whatever the test puts
//! behind a Unix socket.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use sandgate_errors::Refusal;
use sandgate_proto::v1::{ConnectionMode, EndCause, ErrorReason, IncarnationEnd, Sandbox, SandboxState, Usage};
use sandgate_provider::{Begun, ByteStream, Carrier, Change, Link, Name, NewSandbox, Provider, Removed, Table};
use tokio::{net::UnixStream, sync::Semaphore};

/// See the top of the file.
#[derive(Debug)]
pub(crate) struct Fake {
    table: Arc<Table>,
    links: Mutex<HashMap<String, Link>>,
    number: AtomicU64,
    /// How often Create was asked for.
    pub(crate) asked: AtomicU64,
    /// Create goes on while there are permits.
    pub(crate) creating: Semaphore,
    /// All calls of `delete`, with the uid that was given.
    pub(crate) deletes: Mutex<Vec<(String, Option<String>)>>,
    /// What the last Update asked for.
    pub(crate) changed: Mutex<Option<Change>>,
}

#[derive(Debug)]
struct Socket(PathBuf);

#[async_trait]
impl Carrier for Socket {
    fn mode(&self) -> ConnectionMode {
        ConnectionMode::Local
    }

    async fn open(&self) -> io::Result<Box<dyn ByteStream>> {
        Ok(Box::new(UnixStream::connect(&self.0).await?))
    }

    // What the test puts there may speak gRPC alone: that is found out.
    fn is_next_door(&self) -> bool {
        true
    }
}

// === impl Fake ===

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            table: Arc::new(Table::new("fake")),
            links: Mutex::default(),
            number: AtomicU64::new(1),
            asked: AtomicU64::new(0),
            creating: Semaphore::new(Semaphore::MAX_PERMITS),
            deletes: Mutex::default(),
            changed: Mutex::default(),
        })
    }

    /// A sandbox that is there and ready, with what listens at `socket` inside.
    pub(crate) fn add(&self, name: &str, incarnation: &str, socket: &Path) {
        let link = Link::new(Arc::new(Socket(socket.to_owned())));
        self.links.lock().unwrap().insert(name.to_owned(), link);
        self.table.put(Sandbox {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            incarnation: incarnation.to_owned(),
            state: SandboxState::Ready.into(),
            ..Sandbox::default()
        });
    }

    /// Changes what is known of a sandbox.
    pub(crate) fn set(&self, name: &str, change: impl FnOnce(&mut Sandbox)) -> Arc<Sandbox> {
        let mut sandbox = Sandbox::clone(&self.table.get(name).expect(name));
        change(&mut sandbox);
        self.table.put(sandbox)
    }

    /// Its processes are gone, and its disk is there.
    pub(crate) fn fall_asleep(&self, name: &str) -> Arc<Sandbox> {
        self.set(name, |sandbox| {
            let incarnation = std::mem::take(&mut sandbox.incarnation);
            sandbox.last_end = Some(IncarnationEnd {
                incarnation,
                message: "it fell asleep".into(),
                ..Default::default()
            });
            sandbox.set_state(SandboxState::Suspended);
        })
    }

    /// The etag that every sandbox has.
    pub(crate) const ETAG: &str = "etag";

    fn get(&self, name: &Name) -> Result<Arc<Sandbox>, Refusal> {
        let missing = || Refusal::new(ErrorReason::SandboxNotFound, name.as_str());
        self.table.get(name.as_str()).ok_or_else(missing)
    }
}

#[async_trait]
impl Provider for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn table(&self) -> &Arc<Table> {
        &self.table
    }

    async fn create(&self, wanted: NewSandbox) -> Result<Begun, Refusal> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _permit = self.creating.acquire().await.unwrap();
        let created = self.table.get(wanted.name.as_str()).is_none();
        if created {
            self.table.put(Sandbox {
                name: wanted.name.to_string(),
                uid: format!("uid-{}", self.number.fetch_add(1, Ordering::Relaxed)),
                state: SandboxState::Creating.into(),
                ..Sandbox::default()
            });
        }
        Ok(Begun {
            sandbox: self.get(&wanted.name)?,
            created,
            resumed: false,
        })
    }

    async fn ready(&self, name: &Name, _uid: &str) -> Result<Arc<Sandbox>, Refusal> {
        let settled = |sandbox: Option<&Sandbox>| sandbox.is_none_or(|s| s.state() == SandboxState::Ready);
        self.table
            .wait(Duration::MAX / 4, |now| settled(now.get(name.as_str())))
            .await;
        self.get(name)
    }

    async fn resume(&self, name: &Name) -> Result<Begun, Refusal> {
        let resumed = self.get(name)?.state() == SandboxState::Suspended;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let sandbox = self.set(name.as_str(), |sandbox| {
            if resumed {
                sandbox.incarnation = format!("resumed-{number}");
                sandbox.set_state(SandboxState::Ready);
            }
        });
        Ok(Begun {
            sandbox,
            created: false,
            resumed,
        })
    }

    async fn suspend(&self, name: &Name, _: Option<&str>, _: Duration) -> Result<Arc<Sandbox>, Refusal> {
        self.get(name)?;
        Ok(self.fall_asleep(name.as_str()))
    }

    async fn update(&self, name: &Name, change: Change) -> Result<Arc<Sandbox>, Refusal> {
        if change.etag.as_deref().is_some_and(|etag| etag != Self::ETAG) {
            return Err(Refusal::new(ErrorReason::EtagMismatch, "another etag"));
        }
        let labels = change.labels.clone().unwrap_or_default();
        *self.changed.lock().unwrap() = Some(change);
        self.get(name)?;
        Ok(self.set(name.as_str(), |sandbox| sandbox.labels = labels.into_iter().collect()))
    }

    async fn delete(&self, name: &Name, uid: Option<&str>, _: Option<Duration>) -> Result<Removed, Refusal> {
        let deleted = (name.to_string(), uid.map(str::to_owned));
        self.deletes.lock().unwrap().push(deleted);
        let Some(sandbox) = self.table.get(name.as_str()) else {
            return Ok(Removed::default());
        };
        self.table
            .remove(name.as_str(), &sandbox.uid, EndCause::Deleted, "deleted");
        Ok(Removed {
            existed: true,
            uid: sandbox.uid.clone(),
            ..Removed::default()
        })
    }

    async fn usage(&self, _: &Name) -> Result<Usage, Refusal> {
        Ok(Usage {
            processes: Some(3),
            ..Usage::default()
        })
    }

    fn link(&self, name: &Name) -> Result<(Arc<Sandbox>, Link), Refusal> {
        let sandbox = self.get(name)?;
        if sandbox.state() != SandboxState::Ready {
            return Err(Refusal::new(ErrorReason::SandboxSuspended, "asleep"));
        }
        let link = self.links.lock().unwrap().get(name.as_str()).expect("a link").clone();
        Ok((sandbox, link))
    }
}
