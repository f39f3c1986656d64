//! A sandbox's directory on this machine: what lies in it, and how the process beside the sandbox is spoken to.
//!
//! The server writes the [`Record`] and asks; `sandgate-monitor` does and writes the [`Status`]. Everything that is about
//! one sandbox is in its directory, so that a server that was killed finds all of it again.
#![forbid(unsafe_code)]

mod boot;
mod cgroup;
mod confine;
pub mod control;
mod disk;
mod inside;
pub mod layout;
mod life;
mod record;
mod remove;
mod report;
mod seccomp;
mod speaker;
mod status;
mod within;

pub use self::{
    life::run,
    record::{IsolationLevel, Limits, Network, Record, Root, Spec, UidRange, Variable},
    remove::{disk_bytes, remove_tree},
    status::{Cause, Cgroups, Ended, Mechanism, Running, Status, Step, boot_id, mechanism, now_ms, unique},
};
