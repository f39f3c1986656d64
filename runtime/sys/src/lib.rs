//! Our own system calls: what std, libc and rustix do not offer, behind safe functions.
//!
//! All `unsafe` of runtime and monitor is in this crate. Its heart is starting programs without copying the address space
//! ([`Command`]), as a child of our own or under a [`Keeper`].

mod begun;
mod child;
mod clone3;
mod counters;
mod inherited;
mod isolate;
mod keeper;
mod limits;
mod parked;
#[cfg(feature = "tokio")]
mod quiet;
mod raw;
mod read;
#[cfg(feature = "tokio")]
mod ready;
mod signal;
mod spawn;
mod stack;
mod wait;

#[cfg(test)]
mod tests;

pub use self::{
    begun::{Begun, set_oom_score},
    child::hold_until_exec,
    clone3::{CLONE3_KEY, Clone3Key, use_clone3_key},
    counters::Counters,
    inherited::{inherit_nothing, inherited, with_own_descriptors},
    isolate::{
        MountChange, Namespaces, attach_loop, c_string, change_mount, child_signals, clone_into_namespaces,
        exec_descriptor, leave_session_keyring, loopback_up, termination_signals, unshare_cgroup,
    },
    keeper::Keeper,
    limits::{SpareMemory, raise_descriptor_limit, share_heaps, survive_file_size_limit},
    parked::Parked,
    read::read_into,
    signal::send_signal,
    spawn::{Command, Credentials, Limit, SpawnError, Spawned, Stage, Stdio},
    wait::{Exit, ExitStatus, peek, reap},
};
#[cfg(feature = "tokio")]
pub use self::{
    quiet::QuietStream,
    ready::{Watched, priority, readiness, try_readiness},
};
