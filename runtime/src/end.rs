//! The end of the runtime: why, and in which order.

use std::{fs, path::PathBuf, time::Duration};

use sandgate_exec::Execs;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use crate::clock::{Clock, End};

/// Why the runtime ends.
#[derive(Debug)]
enum Why {
    Told(Option<Duration>),
    Signal,
    Clock(End),
}

/// Between TERM and KILL when the sandbox ends by itself.
const END_GRACE: Duration = Duration::from_secs(2);

/// Waits for a reason to end, then ends everything and puts it on disk; the reason is written to each of `logs`.
pub(crate) async fn end(
    mut stops: mpsc::Receiver<Option<Duration>>,
    clock: Clock,
    execs: Execs,
    logs: impl Iterator<Item = PathBuf>,
) {
    let mut signals = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(term), Ok(int)) => (term, int),
        _ => return tracing::error!("signals can't be taken"),
    };
    let why = tokio::select! {
        Some(grace) = stops.recv() => Why::Told(grace),
        () = either(&mut signals) => Why::Signal,
        end = clock.end(execs.alive()) => Why::Clock(end),
    };
    tracing::info!(?why, "stopping");
    let (word, grace) = match why {
        Why::Told(grace) => ("stopped", grace),
        Why::Signal => ("signal", Some(END_GRACE)),
        Why::Clock(End::Deadline) => ("deadline", Some(END_GRACE)),
        Why::Clock(End::Idle) => ("idle", Some(END_GRACE)),
    };
    tokio::select! {
        () = execs.stop(grace) => {}
        // A long grace can be cut short.
        Some(grace) = stops.recv() => execs.stop(grace).await,
        () = either(&mut signals) => execs.stop(Some(END_GRACE)).await,
        _ = clock.end(execs.alive()), if !matches!(why, Why::Clock(_)) => execs.stop(Some(END_GRACE)).await,
    }
    // For whoever looks after the sandbox: why it is gone.
    for log in logs {
        if let Err(error) = fs::write(&log, word) {
            tracing::warn!(%error, ?log, "the reason of the end could not be written down");
        }
    }
}

async fn either((term, int): &mut (Signal, Signal)) {
    tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
}
