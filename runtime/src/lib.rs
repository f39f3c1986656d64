//! The one program inside every sandbox: it owns the processes, their output and the files.
//!
//! It serves `sandgate.runtime.v1` on a Unix socket that lies outside the sandbox, over a network, or both. Whatever its
//! callers do, it keeps going; it ends when it is told to, or when the sandbox's deadline or idle limit is reached. As PID
//! 1 it reaps orphans.
#![forbid(unsafe_code)]

mod accepted;
mod args;
mod batches;
mod clock;
mod end;
mod hands;
mod identity;
mod local;
mod network;
mod python;
mod serve;
mod service;
mod stream;

pub use self::{
    args::Args,
    identity::GENERATION,
    serve::{EX_USAGE, run},
};
