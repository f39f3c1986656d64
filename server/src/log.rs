//! Logs: for people on a terminal, for programs otherwise. Both name the request in every line about one.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::LogFilter;

/// Logs to stderr from now on. Does nothing if somebody else collects already.
pub fn init(filter: &LogFilter) {
    let registry = tracing_subscriber::registry().with(EnvFilter::new(filter.directives()));
    let terminal = io::stderr().is_terminal();
    let set = if terminal {
        registry.with(fmt::layer().with_writer(io::stderr)).try_init()
    } else {
        let json = fmt::layer().json().flatten_event(true).with_current_span(false);
        registry.with(json.with_writer(io::stderr)).try_init()
    };
    // Tests may have one of their own.
    _ = set;
}
