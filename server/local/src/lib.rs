//! Sandboxes on this machine.
//!
//! Everything about a sandbox lies in one directory, beside which a process of its own runs: its monitor. This crate
//! makes such directories, starts monitors, speaks to them, and finds all of it again after the server was killed.
//! It keeps nothing else.
#![forbid(unsafe_code)]

mod actor;
mod carrier;
mod cgroups;
mod local;
mod monitor;
mod ranges;
mod sandbox;
mod settings;
mod shared;
mod skeleton;
mod slot;
mod spawner;
mod started;
mod store;
mod usage;

pub use self::{
    local::{Local, OpenError},
    settings::{Limits, Settings, Template, TemplateRoot, UidRanges},
};
pub use sandgate_monitor::{IsolationLevel, Limits as Resources, Network, mechanism};
