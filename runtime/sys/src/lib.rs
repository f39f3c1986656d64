//! The runtime's own system calls: what std, libc and rustix do not offer, behind safe functions.
//!
//! All `unsafe` of the runtime is in this crate. Its heart is starting programs without copying the address space
//! ([`Command`]), as a child of our own or under a [`Keeper`].

mod child;
mod counters;
mod inherited;
mod keeper;
mod limits;
mod raw;
mod read;
mod ready;
mod signal;
mod spawn;
mod stack;
mod wait;

#[cfg(test)]
mod tests;

pub use self::{
    counters::Counters,
    inherited::inherited,
    keeper::Keeper,
    limits::{raise_descriptor_limit, survive_file_size_limit},
    read::read_into,
    ready::{priority, readiness},
    signal::send_signal,
    spawn::{Command, Credentials, Limit, SpawnError, Spawned, Stage},
    wait::{Exit, ExitStatus, peek, reap},
};
