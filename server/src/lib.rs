//! The Sandgate service: `sandgate.v1` for callers, and behind it the sandboxes.
//!
//! The configuration says what to serve and where, layers turn a request into a caller, the service checks calls and
//! passes them on: to the provider, which makes and finds sandboxes, or to the runtime inside one.
#![forbid(unsafe_code)]

pub mod config;
pub mod convert;
pub mod doctor;
pub mod keys;
pub mod log;
pub mod notify;

mod cli;
mod kubernetes;
mod layers;
mod listen;
mod local;
mod provider;
mod serve;
mod service;
mod state_dir;
mod stopping;

pub use self::{
    cli::{Args, Command, Keys},
    config::{Config, ConfigErrors, Process, Sources},
    layers::{caller::Caller, request_id::RequestId},
    listen::{ListenError, Peer},
    provider::{Opened, ProviderError},
    serve::{Bound, ServeError},
    service::{GrpcService, Sandboxes, Service},
    state_dir::{StateDir, StateError, Token},
    stopping::Stopping,
};
