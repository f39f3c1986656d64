//! Sandboxes on Kubernetes, by the claims of agent-sandbox.
#![forbid(unsafe_code)]

mod api;
mod birth;
mod client;
mod create;
mod dial;
mod doctor;
mod driver;
mod ending;
mod greet;
mod lease;
mod lifecycle;
mod list;
mod memo;
mod notes;
mod origin;
mod provider;
mod reach;
mod seal;
mod settings;
mod shared;
mod stop;
#[cfg(test)]
mod testing;
mod trouble;
mod update;
mod usage;
mod view;
mod watch;
mod world;

pub use self::{
    api::DiscoveryError,
    doctor::examine,
    notes::parse_mode,
    provider::{Kubernetes, OpenError},
    settings::{DirectSettings, GatewaySettings, Settings},
};
