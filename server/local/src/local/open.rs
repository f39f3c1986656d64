//! Opening: what the configuration asks of this machine, what lies on disk, and who looks after it from now on.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sandgate_monitor::{IsolationLevel, Root, boot_id, now_ms};
use sandgate_provider::Table;
use tokio::{
    sync::{Semaphore, watch},
    task::{self, JoinHandle},
    time,
};

use super::Local;
use crate::{
    actor::{Actor, Origin},
    cgroups::Cgroups,
    ranges::{Lease, Ranges},
    sandbox,
    settings::{Settings, Template, TemplateRoot},
    shared::{Shared, unique},
    skeleton::{HostPathError, Skeleton},
    slot::{News, Slot},
    spawner::Spawner,
    store::{Contents, Found, Litter, Store, clear, unattended},
};

/// Monitors that are started at once for sandboxes that have none.
const RESTARTS: usize = 16;
/// How often connections and litter are looked at.
const SWEEP: Duration = Duration::from_secs(30);
/// A connection that nobody asked for during this time is let go.
const REST: Duration = Duration::from_secs(60);
/// How long all that was found may take to be known, before callers are let in all the same.
const FIRST_WORDS: Duration = Duration::from_secs(5);
/// How long a monitor may take to clean up after a birth that nobody waits for any more.
const CLEAN_UP: Duration = Duration::from_secs(30);

/// Why sandboxes can't be had here.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A part of the state directory.
    #[error("{}: {}", .0.display(), .1)]
    StateDir(PathBuf, #[source] io::Error),
    /// A program that we need.
    #[error("{name} {}: {source}", .path.display())]
    Program {
        /// Its key in the configuration.
        name: &'static str,
        /// Where it should be.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// Something that a template says.
    #[error("template {template}: {key} {problem}")]
    Template {
        /// Its name.
        template: String,
        /// Its key.
        key: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The machine.
    #[error("this machine does not say which boot this is: {0}")]
    Boot(#[source] io::Error),
    /// A thread of ours.
    #[error("the thread that starts monitors can't be had: {0}")]
    Thread(#[source] io::Error),
    /// Random numbers.
    #[error("{0}")]
    Random(String),
}

// === impl Local ===

impl Local {
    /// Opens a state directory, whose lock the caller holds, and begins to look after what lies in it.
    ///
    /// All sandboxes are in the table when this returns, as their monitors say that they are. Of one whose monitor says nothing
    /// for long, what lies on disk is believed meanwhile.
    ///
    /// # Errors
    /// When something is missing without which no sandbox can be made.
    pub async fn open(settings: Settings) -> Result<Arc<Self>, OpenError> {
        let prepared = task::spawn_blocking(move || prepare(settings)).await;
        let (shared, contents) = prepared.map_err(|error| OpenError::Boot(io::Error::other(error)))??;
        let Contents {
            sandboxes,
            unfinished,
            trash,
            ..
        } = contents;
        tracing::info!(
            sandboxes = sandboxes.len(),
            cgroups = shared.cgroups.why_not(),
            "found the sandboxes on this machine"
        );
        for found in sandboxes {
            shared.adopt(found);
        }
        let births = shared.clean_up(unfinished, trash);
        if time::timeout(FIRST_WORDS, shared.known(births)).await.is_err() {
            tracing::warn!(
                "a sandbox that was found, or was being made, has a monitor that does not say how it is: what lies on disk is believed"
            );
        }
        tokio::spawn(sweep(Arc::clone(&shared)));
        Ok(Arc::new(Self { shared }))
    }
}

/// All of opening that blocks.
fn prepare(mut settings: Settings) -> Result<(Arc<Shared>, Contents), OpenError> {
    let store = Store::open(&settings.state_dir).map_err(|(path, error)| OpenError::StateDir(path, error))?;
    settings.runtime_bin = program("runtime_bin", &settings.runtime_bin)?;
    settings.monitor_bin = program("monitor_bin", &settings.monitor_bin)?;
    let mut roots = BTreeMap::new();
    for (name, template) in &settings.templates {
        roots.insert(name.clone(), root(name, template, &store)?);
    }
    let contents = store.scan();
    let used: Vec<_> = roots.values().cloned().collect();
    store.reap_roots(&contents, &used);
    store.reap_damaged(now_ms());
    let epoch = unique().map_err(|refusal| OpenError::Random(refusal.message))?;
    let is_root = rustix::process::geteuid().is_root();
    let shared = Shared {
        store,
        spawner: Spawner::new().map_err(OpenError::Thread)?,
        table: Arc::new(Table::new(epoch)),
        cgroups: Cgroups::find(settings.cgroup_parent.as_deref()),
        ranges: is_root.then(|| Ranges::new(settings.uids)),
        roots,
        live: Arc::new(Semaphore::new(settings.limits.sandboxes.min(Semaphore::MAX_PERMITS))),
        restarts: Semaphore::new(RESTARTS),
        boot_id: boot_id().map_err(OpenError::Boot)?,
        closing: watch::Sender::new(false),
        actors: watch::Sender::new(0),
        slots: Default::default(),
        settings,
    };
    Ok((Arc::new(shared), contents))
}

fn program(name: &'static str, path: &Path) -> Result<PathBuf, OpenError> {
    let found = fs::canonicalize(path).and_then(|found| {
        rustix::fs::access(&found, rustix::fs::Access::EXEC_OK)?;
        Ok(found)
    });
    found.map_err(|source| OpenError::Program {
        name,
        path: path.to_owned(),
        source,
    })
}

/// What the files of a template's sandboxes are.
fn root(name: &str, template: &Template, store: &Store) -> Result<Root, OpenError> {
    let wrong = |key, problem: String| OpenError::Template {
        template: name.to_owned(),
        key,
        problem,
    };
    match &template.root {
        TemplateRoot::Rootfs { path } => match fs::canonicalize(path) {
            Ok(path) if path.is_dir() => Ok(Root::Rootfs { path }),
            Ok(path) => Err(wrong("rootfs", format!("{}: not a directory", path.display()))),
            Err(error) => Err(wrong("rootfs", format!("{}: {error}", path.display()))),
        },
        TemplateRoot::Host { .. } if template.isolation == IsolationLevel::None => Ok(Root::Host {
            skeleton: PathBuf::new(),
            shown: Vec::new(),
        }),
        TemplateRoot::Host { paths } => {
            let skeleton = Skeleton::plan(Path::new("/"), template.network, paths, store.root());
            let skeleton = skeleton.map_err(|error: HostPathError| wrong("host_paths", error.to_string()))?;
            let roots = store.roots();
            skeleton
                .install(&roots)
                .map_err(|error| OpenError::StateDir(roots, error))
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Takes over a sandbox that is on disk.
    fn adopt(self: &Arc<Self>, found: Found) {
        let Found {
            name,
            dir,
            record,
            status,
            started,
        } = found;
        let (slot, inbox) = Slot::new(name.clone(), record.uid.clone(), record.template.clone(), dir);
        slot.tell(News::found);
        self.slots().by_name.insert(name, Arc::clone(&slot));
        let mut actor = Actor::new(Arc::clone(self), slot, inbox, record);
        actor.sandbox = Arc::new(sandbox::found(&actor.record, &status, started.as_ref(), &self.boot_id));
        actor.started = started;
        actor.range = self.lease(actor.record.spec.uid_range);
        if status
            .running
            .as_ref()
            .is_some_and(|running| running.boot_id == self.boot_id)
        {
            actor.believe(status.running);
        }
        self.table.put(Arc::clone(&actor.sandbox));
        tokio::spawn(actor.run(Origin::Found));
    }

    fn lease(&self, range: Option<sandgate_monitor::UidRange>) -> Option<Lease> {
        Some(self.ranges.as_ref()?.note(range?))
    }

    /// Waits until nothing is to be expected any more of a server that is gone. The last that it asked of a monitor, to remove a
    /// sandbox or to complete one, may still be on its way: who is told what lies on disk sees it change, and nobody does it.
    async fn known(&self, births: Vec<JoinHandle<()>>) {
        for birth in births {
            let _ = birth.await;
        }
        let slots: Vec<_> = self.slots().by_name.values().cloned().collect();
        for slot in slots {
            let _ = slot.news.subscribe().wait_for(News::is_known).await;
        }
    }

    /// Removes what an earlier server left half made or half removed, in the background. Answers the ends of what was half made.
    fn clean_up(self: &Arc<Self>, unfinished: Vec<Litter>, trash: Vec<Litter>) -> Vec<JoinHandle<()>> {
        let births = unfinished.into_iter().map(|litter| {
            let lease = self.lease(litter.range());
            let shared = Arc::clone(self);
            tokio::spawn(async move {
                shared.abandon(litter).await;
                drop(lease);
            })
        });
        let births = births.collect();
        let trash: Vec<_> = trash
            .into_iter()
            .map(|litter| (self.lease(litter.range()), litter.dir))
            .collect();
        tokio::spawn(async move {
            for (lease, dir) in trash {
                if unattended(&dir, CLEAN_UP).await {
                    let _ = task::spawn_blocking(move || clear(&dir)).await;
                }
                drop(lease);
            }
        });
        births
    }

    /// Removes a sandbox that was being made. Its monitor does it by itself, if it is alive.
    async fn abandon(self: &Arc<Self>, Litter { dir, record }: Litter) {
        if !unattended(&dir, CLEAN_UP).await {
            tracing::warn!(dir = %dir.display(), "a monitor does not let go of a sandbox that was never finished");
            return;
        }
        let uid = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let store = self.store.clone();
        let found = task::spawn_blocking(move || {
            if let Err(error) = store.discard(&dir, &uid) {
                tracing::warn!(dir = %dir.display(), %error, "can't be removed");
            }
            // The last word of the server that made it may have been that it is complete.
            store.completed(&record?)
        });
        if let Ok(Some(found)) = found.await
            && self.slot(&found.name).is_none()
        {
            self.adopt(found);
        }
    }
}

/// Lets idle connections go, now and then.
async fn sweep(shared: Arc<Shared>) {
    let mut closing = shared.closing.subscribe();
    loop {
        let closed = async { drop(closing.wait_for(|closing| *closing).await) };
        if time::timeout(SWEEP, closed).await.is_ok() {
            return;
        }
        let slots: Vec<_> = shared.slots().by_name.values().cloned().collect();
        for slot in slots {
            slot.link().rest(REST);
        }
    }
}
