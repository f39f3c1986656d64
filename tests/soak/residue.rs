//! What is there before a soak and must be all that is there after it: descriptors, threads, memory, processes, mounts,
//! loop devices, cgroups, directories. What outlived the whole soak, a sandbox's monitor and runtime, must have no more
//! than one to which everything was done once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use sandgate_tests::{
    procs::{children, marked, own_memory},
    server::Server,
};
use tokio::time;

/// Threads of a pool stay for a while, and what a sandbox leaves is removed after Delete has answered.
const PATIENCE: Duration = Duration::from_secs(90);
/// How much more memory of its own a process may have: what allocators keep, and records of commands.
const MEMORY: u64 = 24 << 20;

/// A runtime keeps the threads of its pool: as many as there ever was blocking work at once.
const POOL: usize = 6;

/// What one process has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// By what they are of.
    descriptors: BTreeMap<String, usize>,
    threads: usize,
    /// With those that ended and that it did not wait for.
    children: usize,
    pub(crate) memory: u64,
}

/// What a sandbox has that runs no command.
#[derive(Clone, Debug)]
pub(crate) struct Inside {
    runtime: Held,
    monitor: Held,
}

/// What there is on the machine, of one server and of the test itself.
#[derive(Clone, Debug)]
pub(crate) struct Residue {
    pub(crate) server: Held,
    pub(crate) test: Held,
    /// Processes, cgroups, mounts, loop devices, directories.
    things: BTreeSet<String>,
}

// === impl Held ===

impl Held {
    fn of(pid: u32) -> Self {
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
            if let Ok(target) = fs::read_link(entry.path()) {
                // Sockets and pipes have a number each.
                let kind = target.display().to_string();
                let kind = kind.split_once(":[").map_or(kind.as_str(), |(kind, _)| kind).to_owned();
                *descriptors.entry(kind).or_default() += 1;
            }
        }
        Self {
            descriptors,
            threads: fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(),
            children: children(pid).len(),
            memory: own_memory(pid),
        }
    }

    /// What it has more of than before.
    fn beyond(&self, before: &Self, who: &str) -> Vec<String> {
        let mut more = Vec::new();
        for (kind, count) in &self.descriptors {
            let had = before.descriptors.get(kind).copied().unwrap_or_default();
            if *count > had {
                more.push(format!("{who}: {count} descriptors of {kind}, not {had}"));
            }
        }
        for (what, has, had) in [
            ("threads", self.threads, before.threads),
            ("children", self.children, before.children),
        ] {
            if has > had {
                more.push(format!("{who}: {has} {what}, not {had}"));
            }
        }
        if self.memory > before.memory + MEMORY {
            let (has, had) = (self.memory >> 10, before.memory >> 10);
            more.push(format!("{who}: {has} KiB of memory, not {had}"));
        }
        more
    }
}

// === impl Inside ===

impl Inside {
    pub(crate) fn of(server: &Server, name: &str) -> Self {
        let dir = server.sandbox_dir(name);
        let monitor = server.monitor_pid(&dir).unwrap().as_raw_nonzero().get();
        let mut inside = Self {
            runtime: Held::of(server.sandbox_pid(name).cast_unsigned()),
            monitor: Held::of(monitor.cast_unsigned()),
        };
        // By a name that is the same for all sandboxes.
        let uid = sandgate_monitor::Record::read(&dir).unwrap().uid;
        for held in [&mut inside.runtime, &mut inside.monitor] {
            for (kind, count) in std::mem::take(&mut held.descriptors) {
                let kind = kind.replace(&dir.display().to_string(), "").replace(&uid, "");
                *held.descriptors.entry(kind).or_default() += count;
            }
        }
        inside
    }

    /// Waits until a sandbox has no more than this one.
    pub(crate) async fn until_like_this(&self, server: &Server, name: &str) -> u64 {
        let begun = Instant::now();
        let mut runtime = self.runtime.clone();
        runtime.threads += POOL;
        loop {
            let now = Self::of(server, name);
            let mut more = now.runtime.beyond(&runtime, "its runtime");
            more.extend(now.monitor.beyond(&self.monitor, "its monitor"));
            if more.is_empty() {
                return now.runtime.memory;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "sandbox {name} has more than one should: {more:#?}"
            );
            time::sleep(Duration::from_millis(200)).await;
        }
    }
}

// === impl Residue ===

impl Residue {
    pub(crate) fn take(server: &Server, mark: &str) -> Self {
        let mut things: BTreeSet<String> = server.left().into_iter().collect();
        for process in marked(mark) {
            things.insert(format!("process {process:?}"));
        }
        let ours = server.dir().display().to_string();
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
        things.extend(
            files
                .filter(|file| file.contains(&ours))
                .map(|file| format!("loop device of {file}")),
        );
        for dir in [server.dir().to_owned(), server.state_dir()] {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                things.insert(format!("entry {}", entry.path().display()));
            }
        }
        Self {
            server: Held::of(server.pid()),
            test: Held::of(std::process::id()),
            things,
        }
    }

    /// Waits until there is no more than this.
    pub(crate) async fn until_back(&self, server: &Server, mark: &str) -> Self {
        let begun = Instant::now();
        loop {
            let now = Self::take(server, mark);
            let mut more: Vec<String> = now.things.difference(&self.things).cloned().collect();
            more.extend(now.server.beyond(&self.server, "the server"));
            more.extend(now.test.beyond(&self.test, "the test"));
            if more.is_empty() {
                return now;
            }
            assert!(begun.elapsed() < PATIENCE, "left behind: {more:#?}");
            time::sleep(Duration::from_millis(200)).await;
        }
    }
}
