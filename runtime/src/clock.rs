//! Every sandbox has an end: the deadline and the idle limit, kept here, where no server is needed for it.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// When the sandbox ends, and what keeps it from idling.
#[derive(Clone)]
pub(crate) struct Clock(Arc<Inner>);

struct Inner {
    limits: Mutex<Limits>,
    /// Calls under way.
    calls: AtomicUsize,
    /// When somebody last did something.
    active: Mutex<Instant>,
    changed: Notify,
}

/// The limits in force.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) deadline: Option<SystemTime>,
    pub(crate) idle: Option<Duration>,
}

/// Why a sandbox ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Deadline,
    Idle,
}

/// A call under way.
pub(crate) struct Call(Clock);

/// The wall clock can be set, so the deadline is looked at again at least this often.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

// === impl Clock ===

impl Clock {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Inner {
            limits: Mutex::new(limits),
            calls: AtomicUsize::new(0),
            active: Mutex::new(Instant::now()),
            changed: Notify::new(),
        }))
    }

    pub(crate) fn limits(&self) -> Limits {
        *lock(&self.0.limits)
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Limits)) -> Limits {
        let limits = {
            let mut limits = lock(&self.0.limits);
            change(&mut limits);
            *limits
        };
        self.0.changed.notify_one();
        limits
    }

    /// A call reached the runtime. It lasts until the guard is dropped.
    pub(crate) fn call(&self) -> Call {
        self.0.calls.fetch_add(1, Ordering::AcqRel);
        Call(self.clone())
    }

    /// Waits for the sandbox's end. `alive` says how many execs have a process.
    pub(crate) async fn end(&self, mut alive: watch::Receiver<usize>) -> End {
        loop {
            let busy = *alive.borrow_and_update() > 0 || self.0.calls.load(Ordering::Acquire) > 0;
            if busy {
                self.touch();
            }
            let limits = self.limits();
            let left = limits
                .deadline
                .map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
            if left == Some(Duration::ZERO) {
                return End::Deadline;
            }
            let idle = limits
                .idle
                .filter(|_| !busy)
                .map(|limit| limit.saturating_sub(lock(&self.0.active).elapsed()));
            if idle == Some(Duration::ZERO) {
                return End::Idle;
            }
            let wait = [left, idle, Some(LOOK_AGAIN)]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(LOOK_AGAIN);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.0.changed.notified() => {}
                changed = alive.changed() => {
                    if changed.is_ok() {
                        self.touch();
                    }
                }
            }
        }
    }

    fn touch(&self) {
        *lock(&self.0.active) = Instant::now();
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.touch();
        if self.0.0.calls.fetch_sub(1, Ordering::AcqRel) == 1 && self.0.limits().idle.is_some() {
            self.0.0.changed.notify_one();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    fn clock() -> Clock {
        Clock::new(Limits {
            deadline: None,
            idle: Some(IDLE),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn idles_only_with_no_process_and_no_call() {
        let (alive, watched) = watch::channel(1);
        let clock = clock();
        let begun = Instant::now();
        let ending = tokio::spawn({
            let clock = clock.clone();
            async move { clock.end(watched).await }
        });
        tokio::time::sleep(IDLE * 3).await;
        let call = clock.call();
        alive.send_replace(0);
        tokio::time::sleep(IDLE * 2).await;
        assert!(!ending.is_finished());
        drop(call);
        assert_eq!(ending.await.unwrap(), End::Idle);
        assert!(begun.elapsed() >= IDLE * 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_can_be_set_later_and_holds_for_the_busy() {
        let (_alive, watched) = watch::channel(1);
        let clock = clock();
        let ending = tokio::spawn({
            let clock = clock.clone();
            async move { clock.end(watched).await }
        });
        tokio::task::yield_now().await;
        clock.set(|limits| limits.deadline = Some(SystemTime::now()));
        assert_eq!(ending.await.unwrap(), End::Deadline);
    }
}
