//! The Sandgate service: `sandgate.v1` for callers, and behind it the sandboxes.
//!
//! The configuration says what to serve and where, layers turn a request into a caller, the service checks calls and
//! passes them on: to the provider, which makes and finds sandboxes, or to the runtime inside one.
#![forbid(unsafe_code)]

pub mod config;
pub mod convert;
pub mod local;
pub mod log;
pub mod notify;

mod cli;
mod layers;
mod listen;
mod serve;
mod service;
mod state_dir;
mod stopping;

pub use self::{
    cli::{Args, Command},
    config::{Config, ConfigErrors, Process, Sources},
    layers::{caller::Caller, request_id::RequestId},
    listen::{ListenError, Peer},
    local::ProviderError,
    serve::{Bound, ServeError},
    service::Sandboxes,
    state_dir::{StateDir, StateError, Token},
    stopping::Stopping,
};
