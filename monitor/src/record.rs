//! What the server wants a sandbox to be. Written by the server only.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{layout, status::write_json};

/// A sandbox, as it was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// Another one for every sandbox that ever was.
    pub uid: String,
    /// The template's name.
    pub template: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it ends.
    pub deadline_ms: Option<u64>,
    /// How long it may idle.
    pub idle_limit_ms: Option<u64>,
    /// The caller's words.
    pub labels: BTreeMap<String, String>,
    /// For every exec: the template's, then the caller's.
    pub env: Vec<Variable>,
    /// Grows with every change of this record.
    pub revision: u64,
    /// What it is made of.
    pub spec: Spec,
}

/// An environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Its value, when it is not UTF-8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<u8>,
}

/// What a sandbox is made of. Fixed for its life, whatever becomes of its template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Namespaces and all, or nothing.
    pub isolation: IsolationLevel,
    /// What its files are.
    pub root: Root,
    /// The host's uids that are its own. `None`: only the server's own, as root inside.
    pub uid_range: Option<UidRange>,
    /// Where commands begin. Made if it is not there, and the user's own.
    pub workdir: String,
    /// Whom commands run as. With a single uid everybody is root.
    pub user: String,
    /// What it can reach.
    pub network: Network,
    /// What it may use.
    pub limits: Limits,
    /// Mechanisms without which it must not start.
    pub require: Vec<String>,
}

/// How far a sandbox is kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationLevel {
    /// As far as the machine can.
    Full,
    /// Plain processes of the server's user, for development.
    None,
}

/// What a sandbox's files are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// A prepared root with the machine's own directories in it.
    Host {
        /// The prepared root: mount points, a reduced `/etc`.
        skeleton: PathBuf,
        /// Directories of the machine that are shown at the same place, read-only. The skeleton has a mount point for each.
        shown: Vec<PathBuf>,
    },
    /// A directory that holds a whole system, writable through the overlay.
    Rootfs {
        /// The directory.
        path: PathBuf,
    },
}

/// Uids and gids of the host that belong to one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UidRange {
    /// The first, which is root inside.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// What a sandbox can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Its own loopback.
    None,
    /// All that the machine can, also what listens on the machine's loopback.
    Host,
}

/// What a sandbox may use. `None`: no limit of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
    /// Bytes on its disk.
    pub disk: Option<u64>,
    /// Open files of one process.
    pub open_files: Option<u64>,
}

// === impl Record ===

impl Record {
    /// Reads the record in a sandbox's directory.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let text = fs::read(dir.join(layout::RECORD))?;
        serde_json::from_slice(&text).map_err(io::Error::from)
    }

    /// Replaces the record in a sandbox's directory.
    ///
    /// # Errors
    /// When the disk refuses it; the old one is then still there.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        write_json(dir, layout::RECORD, self)
    }
}
