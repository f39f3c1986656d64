//! What Sandgate costs, as ratios against what this machine can do and against what users would pick instead.
//!
//! Two limits are measured: *bare*, the work done directly on this machine, and *floor*, a tonic client, a tonic proxy from
//! TCP to a Unix socket and a tonic server with nothing else in them, which is what any two hops pay.
#![forbid(unsafe_code)]
#![allow(clippy::panic, reason = "a benchmark that can't go on ends")]

pub mod measure;
pub mod report;
pub mod worker;
