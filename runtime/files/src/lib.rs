//! Files in a sandbox: every path is opened beneath a root by the kernel, every call acts as a user, and writes are
//! atomic where the file system allows it.
//!
//! A call opens a [`View`], then runs operations in it. Operations take and return the contract's own types.
#![forbid(unsafe_code)]

pub mod atomic;
mod batch;
pub mod beneath;
pub mod error;
pub mod glob;
pub mod grep;
pub mod identity;
pub mod info;
pub mod litter;
pub mod locks;
mod ops;
pub mod path;
pub mod target;
pub mod transfer;
pub mod version;
pub mod view;
pub mod walk;
pub mod watch;

pub use self::{
    atomic::Shared,
    batch::run_batch,
    error::Error,
    identity::User,
    view::{Defaults, View},
};
