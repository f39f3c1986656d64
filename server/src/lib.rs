//! The Sandgate service: `sandgate.v1` for callers, and behind it the sandboxes.
//!
//! So far it answers every call with NOT_IMPLEMENTED; what stands is the contract, health, reflection, and the
//! conversion between what callers see and what a sandbox's runtime speaks.
#![forbid(unsafe_code)]

pub mod convert;

mod cli;
mod serve;
mod service;

pub use self::{
    cli::{Args, ListenAddr, NotLoopback},
    serve::{Bound, ServeError},
    service::Sandboxes,
};
