//! What the sandbox decides for all of its execs.

use std::{path::PathBuf, time::Duration};

use sandgate_files::User;
use sandgate_output::StoreLimits;
use sandgate_sys::Limit;

/// What holds for every exec of this runtime.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This start of the runtime.
    pub incarnation: String,
    /// Where records and spilled output are kept. The workload must not be able to write there.
    pub state_dir: PathBuf,
    /// Working directory of execs that name none.
    pub cwd: PathBuf,
    /// User of execs that name none; `None`: whoever the runtime is.
    pub user: Option<User>,
    /// PATH of execs that set none.
    pub path: String,
    /// Where each exec gets cgroups of its own; without, it gets a keeper.
    pub cgroups: Option<CgroupRoots>,
    /// Output retained for an exec that says nothing of it.
    pub retain_bytes: u64,
    /// Most output that one exec may ask to retain.
    pub retain_bytes_max: u64,
    /// Bounds over all execs.
    pub output: StoreLimits,
    /// How many finished records are kept.
    pub keep_finished: usize,
    /// How long a finished record is kept.
    pub keep_for: Duration,
    /// How many execs may be alive at once.
    pub max_alive: usize,
    /// The limit of open descriptors that programs get, where the runtime has raised its own.
    pub descriptors: Option<Limit>,
}

/// Directories in which a group for each exec is made.
#[derive(Debug, Clone)]
pub struct CgroupRoots {
    /// In the cgroup2 tree: holds and kills the process tree.
    pub unified: PathBuf,
    /// In a v1 memory tree: counts processes killed for memory, where the cgroup2 tree has no memory controller.
    pub memory: Option<PathBuf>,
}
