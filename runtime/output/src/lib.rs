//! The output of a command as one log.
//!
//! A command writes once; any number of followers read, each with its own cursor, live or later, and all see the
//! same order of the two streams. The log is bounded: newest bytes lie in memory, older ones in spill files, and
//! what no longer fits is dropped. A follower that asks for dropped bytes is told exactly which ones are gone.
//!
//! Words used throughout:
//! - A *record* is a run of bytes of one stream, or a [`Mark`]. Records are numbered; the number is the sequence.
//! - A *segment* is a run of records, the unit of spilling, loading and dropping.
//! - A [`Log`] is a list of segments plus the open one that takes new records.
//! - A [`Store`] holds all logs of a sandbox and their common budget.
//!
//! The state of a log is behind one plain mutex that is never held across an await. Disk work runs on tokio's
//! blocking threads and commits its own result there, so that a caller that goes away in the middle leaves nothing
//! half done.

#![forbid(unsafe_code)]

mod budget;
mod cursor;
mod disk;
mod excerpt;
mod follower;
mod format;
mod heads;
mod log;
mod recover;
mod relief;
mod segment;
mod state;
mod store;
#[cfg(test)]
mod testing;
mod types;

pub use self::{
    excerpt::Excerpt,
    follower::Follower,
    log::Log,
    store::{Store, StoreError},
    types::{FollowFrom, Item, LogOptions, Mark, Offsets, OnFull, StoreLimits, Stream},
};
