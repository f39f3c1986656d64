//! What the server learned when it started a sandbox: kept beside it, so that a later server knows without asking.
//!
//! It also tells whether a start was finished: a runtime that runs and is not the one noted here may never have got its
//! environment.

use std::{fs, io, path::Path, time::Duration};

use sandgate_monitor::{Mechanism, Running, Step};
use serde::{Deserialize, Serialize};

/// In a sandbox's directory. The server's own.
const FILE: &str = "started.json";

/// The last start that was finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Started {
    /// Which.
    pub(crate) incarnation: String,
    /// The runtime's version.
    pub(crate) version: String,
    /// What the runtime can do.
    pub(crate) capabilities: Vec<String>,
    /// What keeps it apart.
    pub(crate) isolation: Vec<Mechanism>,
    /// From the request to READY.
    pub(crate) total_micros: u64,
    /// What it is made of.
    pub(crate) steps: Vec<Step>,
    /// Its disk was there before.
    pub(crate) resumed: bool,
    /// It was told to end, and what runs is killed then. Known to the next server, which sees to it in our place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending_ms: Option<u64>,
}

// === impl Started ===

impl Started {
    /// What is noted in a sandbox's directory. A note that can't be read is as good as none.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()
    }

    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let temporary = dir.join(format!("{FILE}.new"));
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(temporary, dir.join(FILE))
    }

    /// Whether this is how that one was started.
    pub(crate) fn is_of(&self, running: &Running) -> bool {
        self.incarnation == running.incarnation
    }
}

/// A step that took this long.
pub(crate) fn step(name: &str, took: Duration) -> Step {
    Step {
        name: name.to_owned(),
        micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
    }
}
