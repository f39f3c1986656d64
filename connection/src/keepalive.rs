//! Whether a peer is still there.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time;

/// How a peer that went away without a word is noticed.
#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    /// Ask it this often.
    pub every: Duration,
    /// And wait this long for its answer.
    pub patience: Duration,
    /// Also while no call is under way, so that the next one finds out at once.
    pub when_idle: bool,
}

/// What goes on, as far as it tells whether the peer is there.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    calls: AtomicUsize,
    /// What came. It may begin anew, and is only ever compared with what it was.
    heard: AtomicUsize,
}

/// A call under way, counted for as long as this lives.
#[derive(Debug)]
pub(crate) struct Underway(Arc<Traffic>);

// === impl Keepalive ===

impl Keepalive {
    /// Waits until the peer says nothing any more, also when it is asked. One that is heard is there: an answer to `ask`
    /// may be long under way behind all that a slow line has to carry first. That future is ready when the answer has come,
    /// and says whether there was one.
    pub(crate) async fn silence<F: Future<Output = bool>>(self, traffic: &Traffic, mut ask: impl FnMut() -> F) {
        let mut heard = 0;
        let mut is_news = || {
            let now = traffic.heard.load(Ordering::Relaxed);
            std::mem::replace(&mut heard, now) != now
        };
        loop {
            time::sleep(self.every).await;
            let is_idle = traffic.calls.load(Ordering::Relaxed) == 0;
            if is_news() || is_idle && !self.when_idle {
                continue;
            }
            let mut answered = pin!(ask());
            loop {
                match time::timeout(self.patience, &mut answered).await {
                    Ok(true) => break,
                    Err(_) if is_news() => {}
                    Ok(false) | Err(_) => return,
                }
            }
        }
    }
}

// === impl Traffic ===

impl Traffic {
    pub(crate) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Underway ===

impl Underway {
    pub(crate) fn begin(traffic: Arc<Traffic>) -> Self {
        traffic.calls.fetch_add(1, Ordering::Relaxed);
        Self(traffic)
    }

    pub(crate) fn hear(&self) {
        self.0.hear();
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}
