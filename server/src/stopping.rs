//! The news that the server is stopping, for whatever would go on otherwise.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{self, Instant},
};

/// A handle on the server's end. All clones are one.
///
/// Streams wait for [`begun`](Self::begun) beside their work and then end with `STOPPING`, so that callers resume
/// elsewhere. One that does not is ended for it, after [`Stopping::STREAM_GRACE`].
#[derive(Clone, Debug)]
pub struct Stopping(Arc<watch::Sender<Stage>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Serving,
    Begun(Instant),
    AtOnce(Instant),
}

// === impl Stopping ===

impl Stopping {
    /// How long streams have to end by themselves.
    pub const STREAM_GRACE: Duration = Duration::from_secs(2);

    /// Nothing is stopping yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Stage::Serving)))
    }

    /// Stops in order: calls finish, streams are told.
    pub fn begin(&self) {
        self.0.send_if_modified(|stage| {
            let serving = *stage == Stage::Serving;
            if serving {
                *stage = Stage::Begun(Instant::now());
            }
            serving
        });
    }

    /// Stops without waiting for anybody.
    pub fn at_once(&self) {
        self.0
            .send_modify(|stage| *stage = Stage::AtOnce(stage.since().unwrap_or_else(Instant::now)));
    }

    /// Whether it has begun.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        *self.0.borrow() != Stage::Serving
    }

    /// Waits until it has begun.
    pub async fn begun(&self) {
        self.until(|stage| *stage != Stage::Serving).await;
    }

    /// Waits until it is to happen at once.
    pub async fn hurried(&self) {
        self.until(|stage| matches!(stage, Stage::AtOnce(_))).await;
    }

    /// Waits until nobody is to be waited for any more.
    pub(crate) async fn impatient(&self, grace: Duration) {
        self.begun().await;
        tokio::select! {
            () = time::sleep(grace) => {}
            () = self.hurried() => {}
        }
    }

    /// Waits until streams have had their time.
    pub(crate) async fn streams_overdue(&self) {
        self.begun().await;
        if let Some(begun) = self.since() {
            time::sleep_until(begun + Self::STREAM_GRACE).await;
        }
    }

    /// Whether streams have had their time.
    pub(crate) fn is_overdue(&self) -> bool {
        self.since().is_some_and(|begun| begun.elapsed() >= Self::STREAM_GRACE)
    }

    fn since(&self) -> Option<Instant> {
        self.0.borrow().since()
    }

    async fn until(&self, reached: impl FnMut(&Stage) -> bool) {
        // The sender is ours, so that it can't be gone.
        _ = self.0.subscribe().wait_for(reached).await;
    }
}

impl Default for Stopping {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Stage ===

impl Stage {
    fn since(self) -> Option<Instant> {
        match self {
            Self::Serving => None,
            Self::Begun(since) | Self::AtOnce(since) => Some(since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_hears_of_it_once() {
        let stopping = Stopping::new();
        let clone = stopping.clone();
        let waiting = tokio::spawn(async move { clone.begun().await });
        assert!(!stopping.is_begun() && !stopping.is_overdue());
        stopping.begin();
        waiting.await.unwrap();
        assert!(stopping.is_begun());
        let since = stopping.since();
        stopping.begin();
        stopping.at_once();
        assert_eq!(stopping.since(), since, "the first word counts");
        stopping.begun().await;
        stopping.impatient(Duration::MAX).await;
    }
}
