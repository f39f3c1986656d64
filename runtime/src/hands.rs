//! Threads for short work that may block.
//!
//! tokio's own hand work over under a lock: the thread that is woken for it then waits for whoever woke it, and on a machine
//! that is otherwise idle each such wait costs as much as opening and reading a file. Here a thread that has nothing to do is
//! spoken to alone. There are few; what finds none of them free goes to tokio's.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, Thread},
};

use tokio::{sync::oneshot, task::spawn_blocking};

type Work = Box<dyn FnOnce() + Send>;

/// The threads.
#[derive(Clone, Default)]
pub(crate) struct Hands(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    free: Vec<Hand>,
    made: usize,
}

/// One that is free. It does what is laid before it; dropped, it ends.
struct Hand {
    next: Arc<Mutex<Next>>,
    thread: Thread,
}

/// What a thread does when it is woken.
enum Next {
    Wait,
    Do(Work),
    End,
}

/// So many short pieces of work are seldom under way at once.
const MOST: usize = 2;

// === impl Hands ===

impl Hands {
    /// Does the work on a thread that may block, also if nobody waits for it any more. `None`: it panicked.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let Some(hand) = self.hand() else {
            return spawn_blocking(work).await.ok();
        };
        let (done, outcome) = oneshot::channel();
        let hands = self.clone();
        hand.take_up(|hand| {
            Box::new(move || {
                let worked = work();
                // Before anybody hears of the outcome, who may have more to do.
                hands.state().free.push(hand);
                let _ = done.send(worked);
            })
        });
        outcome.await.ok()
    }

    /// One that is free, if there is one or may be one more.
    fn hand(&self) -> Option<Hand> {
        let mut state = self.state();
        if let Some(free) = state.free.pop() {
            return Some(free);
        }
        if state.made == MOST {
            return None;
        }
        let next = Arc::new(Mutex::new(Next::Wait));
        let own = next.clone();
        let body = move || {
            loop {
                let next = std::mem::replace(&mut *locked(&own), Next::Wait);
                match next {
                    Next::Do(work) => work(),
                    Next::Wait => thread::park(),
                    Next::End => return,
                }
            }
        };
        // Refused where the sandbox is out of processes.
        let hand = thread::Builder::new().name("hand".to_owned()).spawn(body).ok()?;
        state.made += 1;
        Some(Hand {
            next,
            thread: hand.thread().clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0)
    }
}

// === impl Hand ===

impl Hand {
    /// Lays work before it that gets the hand itself, to give it back.
    fn take_up(self, work: impl FnOnce(Self) -> Work) {
        let (next, thread) = (self.next.clone(), self.thread.clone());
        let work = work(self);
        *locked(&next) = Next::Do(work);
        thread.unpark();
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        *locked(&self.next) = Next::End;
        self.thread.unpark();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Barrier, mpsc},
        time::Duration,
    };

    use super::*;

    #[tokio::test]
    async fn all_work_is_done_also_when_no_hand_is_free() {
        let hands = Hands::default();
        let together = Arc::new(Barrier::new(MOST + 2));
        let works: Vec<_> = (0..MOST + 2)
            .map(|number| {
                let (hands, together) = (hands.clone(), together.clone());
                let wait = move || {
                    together.wait();
                    number
                };
                tokio::spawn(async move { hands.run(wait).await })
            })
            .collect();
        for (number, work) in works.into_iter().enumerate() {
            assert_eq!(work.await.unwrap(), Some(number));
        }
        for number in 0..100 {
            assert_eq!(hands.run(move || number).await, Some(number));
        }
        let state = hands.state();
        assert_eq!((state.made, state.free.len()), (MOST, MOST));
    }

    #[tokio::test]
    async fn what_nobody_waits_for_is_done_too() {
        let hands = Hands::default();
        let (told, hears) = mpsc::channel();
        let slow = move || {
            thread::sleep(Duration::from_millis(20));
            told.send(()).unwrap();
        };
        assert!(
            tokio::time::timeout(Duration::from_millis(1), hands.run(slow))
                .await
                .is_err()
        );
        hears.recv().unwrap();
    }
}
