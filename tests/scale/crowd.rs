//! Many sandboxes, as one.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use sandgate::{
    Client, Command,
    v1::{self, SandboxState},
};
use sandgate_tests::{procs::until, server::Server};
use tokio::sync::Semaphore;

/// Calls that are under way at once.
pub(crate) const AT_ONCE: usize = 8;
/// Of a crowd, every one in so many is tried.
const TRIED: usize = 50;

/// A sandbox that was made.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) incarnation: String,
    /// PID 1, as the host sees it.
    pub(crate) runtime: Process,
    pub(crate) monitor: Process,
    cgroups: Vec<PathBuf>,
}

/// A process, which is not another one that got its number later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    began: u64,
}

/// Sandboxes that are alive.
#[derive(Debug, Default)]
pub(crate) struct Crowd(Vec<Member>);

// === impl Member ===

impl Member {
    fn look_at(server: &Server, info: &v1::Sandbox) -> Self {
        assert_eq!(info.state(), SandboxState::Ready, "{info:?}");
        let status = sandgate_monitor::Status::read(&server.sandbox_dir(&info.name)).unwrap();
        let running = status.running.unwrap();
        let runtime = Process::find(u32::try_from(running.pid).unwrap()).unwrap();
        let monitor = Process::find(runtime.parent).unwrap();
        Self {
            name: info.name.clone(),
            incarnation: info.incarnation.clone(),
            runtime,
            monitor,
            cgroups: running
                .cgroups
                .v1
                .into_values()
                .chain(running.cgroups.unified)
                .collect(),
        }
    }

    /// What is left of it: processes, groups, its directory.
    fn left(&self, server: &Server) -> Vec<String> {
        let dir = server.sandbox_dir(&self.name);
        let paths = self.cgroups.iter().chain([&dir]).filter(|path| path.exists());
        let processes = [&self.runtime, &self.monitor].into_iter();
        let processes = processes.filter(|process| process.is_alive());
        let paths = paths.map(|path| path.display().to_string());
        paths.chain(processes.map(|process| format!("{process:?}"))).collect()
    }
}

// === impl Process ===

impl Process {
    fn find(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may be anything.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        Some(Self {
            pid,
            parent: fields[1].parse().ok()?,
            began: fields[19].parse().ok()?,
        })
    }

    fn is_alive(&self) -> bool {
        Self::find(self.pid).is_some_and(|found| found.began == self.began)
    }
}

// === impl Crowd ===

impl Crowd {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.0
    }

    /// Makes more, until there are so many.
    pub(crate) async fn grow(&mut self, server: &Server, to: usize) {
        let client = server.client().await;
        let creates = (self.0.len()..to).map(|index| create(client.clone(), name(index)));
        let made = at_once(creates).await;
        self.0.extend(made.iter().map(|info| Member::look_at(server, info)));
    }

    /// Makes one more.
    pub(crate) async fn grow_by_one(&mut self, server: &Server, client: Client) {
        let info = create(client, name(self.0.len())).await;
        self.0.push(Member::look_at(server, &info));
    }

    /// The last ones apart.
    pub(crate) fn split_off(&mut self, count: usize) -> Self {
        Self(self.0.split_off(self.0.len() - count))
    }

    /// Waits until the server shows all of them READY, in the incarnations that they had.
    pub(crate) async fn until_all_are_ready(&self, server: &Server) {
        let client = server.client().await;
        let mut expected: Vec<_> = self
            .0
            .iter()
            .map(|m| (m.name.as_str(), m.incarnation.as_str()))
            .collect();
        expected.sort_unstable();
        // Listed are all of them from the first answer on.
        let listed = client.list("").await.unwrap();
        let mut found: Vec<_> = listed
            .iter()
            .map(|s| (s.name.as_str(), s.incarnation.as_str()))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected);
        for info in listed {
            let attached = client.sandbox(&info.name).attach().await.unwrap();
            assert_eq!(
                (attached.state(), attached.incarnation),
                (SandboxState::Ready, info.incarnation)
            );
        }
        self.check_untouched(server);
    }

    /// Runs something in some of them.
    pub(crate) async fn try_some(&self, server: &Server) {
        let client = server.client().await;
        for member in self.0.iter().step_by(TRIED) {
            let run = client.sandbox(&member.name).run(Command::shell("hostname"));
            let said = run.send().await.unwrap().stdout.unwrap().head;
            assert_eq!(said, format!("{}\n", member.name).as_bytes());
        }
    }

    /// The processes are those that there were.
    pub(crate) fn check_untouched(&self, server: &Server) {
        for member in &self.0 {
            assert!(member.runtime.is_alive() && member.monitor.is_alive(), "{member:?}");
            assert!(server.sandbox_dir(&member.name).exists(), "{member:?}");
        }
    }

    /// Gives the first ones a deadline and the others an idle limit, each so far away.
    pub(crate) async fn limit(&self, server: &Server, by_deadline: usize, away: Duration) {
        let client = server.client().await;
        let limits = self.0.iter().enumerate().map(|(index, member)| {
            let sandbox = client.sandbox(&member.name);
            async move {
                let changed = if index < by_deadline {
                    sandbox.extend(away).await
                } else {
                    let settings = v1::SandboxSettings {
                        idle_limit: Some(away.try_into().unwrap()),
                        ..Default::default()
                    };
                    sandbox.update(settings, &["idle_limit"], "").await
                };
                changed.unwrap();
            }
        });
        at_once(limits).await;
    }

    pub(crate) fn all_are_there(&self, server: &Server) -> bool {
        self.0.iter().all(|member| server.sandbox_dir(&member.name).exists())
    }

    /// Waits until every trace of them is gone.
    pub(crate) async fn until_nothing_is_left(&self, server: &Server) {
        let left = || self.0.iter().flat_map(|member| member.left(server));
        until("sandboxes that reached a limit are gone", || left().next().is_none()).await;
        let trash = fs::read_dir(server.state_dir().join("trash")).unwrap();
        assert_eq!(trash.count(), 0, "their disks are not removed");
    }

    pub(crate) async fn delete_all(self, server: &Server) {
        let client = server.client().await;
        let deletes = self.0.into_iter().map(|member| {
            let sandbox = client.sandbox(member.name);
            async move { assert!(sandbox.delete().await.unwrap().existed) }
        });
        at_once(deletes).await;
    }
}

/// Does all, a few at a time. What they give is in the order in which they were given.
async fn at_once<F>(work: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let few = Arc::new(Semaphore::new(AT_ONCE));
    let mut begun = Vec::new();
    for one in work {
        let place = Arc::clone(&few).acquire_owned().await.unwrap();
        begun.push(tokio::spawn(async move {
            let _place = place;
            one.await
        }));
    }
    let mut done = Vec::new();
    for one in begun {
        done.push(one.await.unwrap());
    }
    done
}

fn name(index: usize) -> String {
    format!("s{index:03}")
}

async fn create(client: Client, name: String) -> v1::Sandbox {
    let made = client.create().name(name).send().await.unwrap();
    assert!(made.created);
    made.info
}
