//! What server and monitor say to each other: one JSON value a line, on a Unix socket.
//!
//! The monitor says [`Said::Status`] first on every connection. Then each [`Request`] gets exactly one of the other
//! answers, in order; [`Said::Ended`] may come between at any time, when PID 1 has ended.
//!
//! `sandgate-monitor DIR` is started with its first connection as stdin. With `--new`, the sandbox is not there yet: until
//! `Commit`, the loss of that connection removes everything.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::status::{Ended, Running, Status};

/// What the server asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start PID 1. Answered by `Started` or `Failed`; one that runs already is no failure.
    Start(Boot),
    /// Move from `new/UID` to `sandboxes/NAME`. Answered by `Done` or `Failed`.
    Commit,
    /// The record has changed: read it again. Answered by `Done`.
    Reread,
    /// Kill PID 1 and with it every process. Answered by `Done`; `Ended` follows when nothing is left.
    Kill,
    /// End every process, free the name, remove the disk. Answered by `Removed` when the name is free.
    Remove,
}

/// How to start PID 1 on this machine, now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The runtime, a static binary.
    pub runtime: PathBuf,
    /// Arguments for it that are neither the sandbox's (see `Record`) nor the monitor's to give.
    pub runtime_args: Vec<String>,
    /// Directories in which the sandbox's cgroups are made.
    pub cgroups: CgroupParents,
}

/// Where cgroups can be made. Found by the server: each controller may be somewhere else, or nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupParents {
    /// In the cgroup2 tree.
    pub unified: Option<PathBuf>,
    /// Controllers that groups in `unified` have.
    pub unified_controllers: Vec<String>,
    /// In trees of cgroup v1, by controller: memory, pids, cpu, cpuacct.
    pub v1: BTreeMap<String, PathBuf>,
    /// Why there is none, by controller, for a person; [`CgroupParents::UNIFIED`] for the cgroup2 tree itself.
    pub why_not: BTreeMap<String, String>,
}

// === impl CgroupParents ===

impl CgroupParents {
    /// The cgroup2 tree, in `why_not`.
    pub const UNIFIED: &str = "cgroup2";

    /// Why there is no such controller, for a person.
    pub(crate) fn why_no(&self, controller: &str) -> &str {
        let found = self.why_not.get(controller).or_else(|| self.why_not.get(Self::UNIFIED));
        found.map_or("no such controller is mounted", String::as_str)
    }
}

/// What the monitor says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// How it is. First on every connection.
    Status(Status),
    /// PID 1 runs, and the runtime takes calls or soon will.
    Started(Running),
    /// It can't be done, and nothing of it is left.
    Failed(Failure),
    /// It is done.
    Done,
    /// The name is free.
    Removed(Removal),
    /// PID 1 and every process have ended. With `gone` the sandbox is removed too: its deadline or idle limit was reached.
    Ended {
        /// Why.
        end: Ended,
        /// The sandbox is removed.
        gone: bool,
    },
}

/// Why a sandbox can't be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The mechanism that can't be had, if it was that.
    pub mechanism: Option<String>,
    /// The same for a person, with what to do about it.
    pub message: String,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// Bytes of its disk; `None`: too many files to count.
    pub disk_bytes: Option<u64>,
}

/// Puts a line together.
///
/// # Errors
/// Never for the types of this module.
pub fn line(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
