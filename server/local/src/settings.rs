//! What the provider is told: plain values, already checked as far as a configuration can be by itself.

use std::{collections::BTreeMap, path::PathBuf};

use sandgate_monitor::{IsolationLevel, Limits as Resources, Network};
use sandgate_provider::limits::{DefaultSpans, Spans};

/// What the provider works with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where everything lies. The caller holds its lock.
    pub state_dir: PathBuf,
    /// The program that runs inside each sandbox.
    pub runtime_bin: PathBuf,
    /// The program that makes and guards each sandbox.
    pub monitor_bin: PathBuf,
    /// What sandboxes can be made from, by name.
    pub templates: BTreeMap<String, Template>,
    /// The template of sandboxes that name none.
    pub default_template: String,
    /// What callers may have at most.
    pub limits: Limits,
    /// The cgroup, in every tree, below which sandboxes get theirs. `None`: `sandgate` below the server's own.
    pub cgroup_parent: Option<PathBuf>,
    /// Uids of this machine that sandboxes may have. Only root can give them.
    pub uids: UidRanges,
}

/// What callers may have at most.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Sandboxes that are not suspended.
    pub sandboxes: usize,
    /// Commands alive at once in one sandbox.
    pub execs_per_sandbox: usize,
    /// The longest life and idle limit.
    pub spans: Spans,
}

/// What a sandbox is made from.
#[derive(Debug, Clone)]
pub struct Template {
    /// What its files are.
    pub root: TemplateRoot,
    /// For every exec.
    pub env: Vec<(String, String)>,
    /// Where commands begin.
    pub workdir: String,
    /// Whom commands run as.
    pub user: String,
    /// What it can reach.
    pub network: Network,
    /// What it may use.
    pub resources: Resources,
    /// How long it lives and may idle, if the caller does not say.
    pub spans: DefaultSpans,
    /// Mechanisms without which Create fails.
    pub require: Vec<String>,
    /// How far it is kept apart.
    pub isolation: IsolationLevel,
}

/// What a template's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateRoot {
    /// The machine's own system directories, read-only.
    Host {
        /// More directories to show.
        paths: Vec<PathBuf>,
    },
    /// A directory that holds a whole system.
    Rootfs {
        /// The directory.
        path: PathBuf,
    },
}

/// Uids of this machine that are cut into ranges, one for each sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRanges {
    /// The first uid of the first range.
    pub first: u32,
    /// How many uids a range has.
    pub size: u32,
    /// How many ranges there are.
    pub count: u32,
}

// === impl UidRanges ===

impl Default for UidRanges {
    /// High enough that nobody else uses them, and below what the kernel or a `uid_t` of 31 bits minds.
    fn default() -> Self {
        Self {
            first: 0x7000_0000,
            size: 0x1_0000,
            count: 4094,
        }
    }
}
