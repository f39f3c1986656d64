//! Background work, named: a bare spawn would lose its place in the logs.

use std::future::Future;

use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// Runs `work` beside its caller. It ends by itself; a panic in it aborts the process (`panic = "abort"`).
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    exec: &str,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(work.instrument(tracing::debug_span!("task", name, exec)))
}
