//! What sandboxes and their server have open and take up, counted from outside.

use std::{collections::BTreeSet, fmt, fs};

use sandgate_tests::{procs::own_memory, server::Server};

use crate::crowd::{Crowd, Member};

/// A count of everything.
#[derive(Debug, Clone)]
pub(crate) struct Census {
    pub(crate) sandboxes: u64,
    /// The most that any of them has of each.
    pub(crate) of_each: Cost,
    /// Means, in bytes.
    pub(crate) monitor_pss: u64,
    pub(crate) runtime_pss: u64,
    /// What the kernel charges to a sandbox: its runtime and the kernel's own memory for it. The mean, in bytes.
    charged: u64,
    pub(crate) server: ServerCost,
    /// Mounts of sandboxes that the host sees.
    pub(crate) host_mounts: BTreeSet<String>,
    all_host_mounts: usize,
}

/// What one sandbox has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    mounts: u64,
    monitor_descriptors: u64,
    monitor_threads: u64,
    runtime_descriptors: u64,
    runtime_threads: u64,
}

/// What the server has.
#[derive(Debug, Clone)]
pub(crate) struct ServerCost {
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Of its own, in bytes.
    pub(crate) memory: u64,
}

// === impl Census ===

impl Census {
    pub(crate) async fn take(server: &Server, crowd: &Crowd) -> Self {
        let members = crowd.members();
        let mean = |sum: u64| sum / u64::try_from(members.len()).unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let ours = server.dir().display().to_string();
        let client = server.client().await;
        let mut charged = 0;
        for member in members {
            let usage = client.sandbox(&member.name).get().await.unwrap().usage.unwrap();
            charged += usage.memory_bytes.expect("this test needs a memory controller");
        }
        drop(client);
        Self {
            sandboxes: u64::try_from(members.len()).unwrap(),
            of_each: members.iter().map(Cost::of).fold(Cost::default(), Cost::max),
            monitor_pss: mean(members.iter().map(|member| pss(member.monitor.pid)).sum()),
            runtime_pss: mean(members.iter().map(|member| pss(member.runtime.pid)).sum()),
            charged: mean(charged),
            server: ServerCost {
                descriptors: entries(server.pid(), "fd"),
                threads: entries(server.pid(), "task"),
                memory: own_memory(server.pid()),
            },
            host_mounts: mounts
                .lines()
                .filter(|line| line.contains(&ours))
                .map(str::to_owned)
                .collect(),
            all_host_mounts: mounts.lines().count(),
        }
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} sandboxes: PSS {} KiB (monitor {}, runtime {}), charged {} KiB; {:?}; server: {} descriptors, {} threads, \
             {} KiB; {} mounts of the host",
            self.sandboxes,
            (self.monitor_pss + self.runtime_pss) >> 10,
            self.monitor_pss >> 10,
            self.runtime_pss >> 10,
            self.charged >> 10,
            self.of_each,
            self.server.descriptors,
            self.server.threads,
            self.server.memory >> 10,
            self.all_host_mounts,
        )
    }
}

// === impl Cost ===

impl Cost {
    fn of(member: &Member) -> Self {
        let (monitor, runtime) = (member.monitor.pid, member.runtime.pid);
        let mounts = fs::read_to_string(format!("/proc/{runtime}/mountinfo")).unwrap();
        Self {
            mounts: u64::try_from(mounts.lines().count()).unwrap(),
            monitor_descriptors: entries(monitor, "fd"),
            monitor_threads: entries(monitor, "task"),
            runtime_descriptors: entries(runtime, "fd"),
            runtime_threads: entries(runtime, "task"),
        }
    }

    /// The most of both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            mounts: self.mounts.max(other.mounts),
            monitor_descriptors: self.monitor_descriptors.max(other.monitor_descriptors),
            monitor_threads: self.monitor_threads.max(other.monitor_threads),
            runtime_descriptors: self.runtime_descriptors.max(other.runtime_descriptors),
            runtime_threads: self.runtime_threads.max(other.runtime_threads),
        }
    }
}

/// Memory that the whole machine could still give, in bytes.
pub(crate) fn mem_available() -> u64 {
    kibibytes(&fs::read_to_string("/proc/meminfo").unwrap(), "MemAvailable:")
}

fn pss(pid: u32) -> u64 {
    kibibytes(
        &fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap(),
        "Pss:",
    )
}

fn kibibytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn entries(pid: u32, of: &str) -> u64 {
    u64::try_from(fs::read_dir(format!("/proc/{pid}/{of}")).unwrap().count()).unwrap()
}
