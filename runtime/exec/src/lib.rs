//! Commands in a sandbox: started once, followed by many, killed whole.
//!
//! [`Execs`] holds them by id. Starting an id again finds the exec that runs under it; ids stay taken for the sandbox's
//! life, across restarts of the runtime. An [`Exec`] belongs to nobody's connection: callers come and go, follow its
//! [`Events`] from any offset, write its stdin, signal its whole process tree.
#![forbid(unsafe_code)]

mod budget;
mod children;
mod exec;
mod execs;
mod follow;
mod home;
mod id;
mod journal;
mod launch;
mod ready;
mod save;
mod settings;
mod spec;
mod stdin;
mod supervise;
pub mod task;
mod tree;

pub use self::{
    budget::{Budget, budgeted},
    exec::{Caller, Exec},
    execs::Execs,
    follow::Events,
    id::{Digest, check_id, digest},
    launch::Awaits,
    settings::{CgroupRoots, Settings},
    spec::{Env, Fingerprint, check_env, command_line, fingerprint, pty_size, span},
};
