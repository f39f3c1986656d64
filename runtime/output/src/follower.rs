//! One reader of a log.

use std::{io, sync::Arc};

use crate::{
    cursor::Cursor,
    log::Inner,
    segment::{Body, Span},
    state::{Entry, Held},
    types::{FollowFrom, Item, Mark, Offsets},
};

/// Reads a log from some point on, at its own pace.
///
/// A follower holds at most one segment besides what the log has. While it is attached, that is until it is dropped
/// or has finished, a log that holds keeps its writer from dropping what this follower has not received.
#[derive(Debug)]
pub struct Follower {
    log: Arc<Inner>,
    /// Set where the log's writer waits for its followers.
    attached: Option<u64>,
    cursor: Cursor,
    /// The closed segment it is in. Read to its end even if the log drops it meanwhile.
    current: Option<(Span, Arc<Body>)>,
    /// A segment that could not be read, to be passed over.
    unreadable: Option<Span>,
    finished: bool,
}

enum Step {
    Item(Item),
    /// The last item.
    Last(Item),
    Load(Entry),
    Wait,
    Finish,
}

// === impl Follower ===

impl Follower {
    pub(crate) fn new(log: Arc<Inner>, from: FollowFrom, wait: bool) -> Self {
        let mut state = log.lock();
        let cursor = state.cursor(from, wait);
        let attached = state.attach(&cursor);
        drop(state);
        Follower {
            log,
            attached,
            cursor,
            current: None,
            unreadable: None,
            finished: false,
        }
    }

    /// The next item, or `None` when the log has ended and all was received.
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Item> {
        // Whoever reads a long log in a loop must let others of its thread run.
        tokio::task::consume_budget().await;
        let log = self.log.clone();
        while !self.finished {
            // Made before the look, so that nothing that comes after the look is missed.
            let news = log.news.notified();
            match self.step() {
                Step::Item(item) => {
                    self.publish();
                    return Some(item);
                }
                Step::Last(item) => {
                    self.finish();
                    return Some(item);
                }
                Step::Load(entry) => self.load(entry).await,
                Step::Wait => news.await,
                Step::Finish => self.finish(),
            }
        }
        None
    }

    /// The offsets after the last item received: where another follower would go on.
    pub fn position(&self) -> Offsets {
        self.cursor.at
    }

    fn step(&mut self) -> Step {
        if let Some(stop) = self.cursor.stopped() {
            return self.step_stopped(stop.ended);
        }
        if let Some(span) = &self.unreadable {
            if let Some(gap) = self.cursor.gap_to(&span.end) {
                return Step::Item(gap);
            }
            self.cursor.place = self.cursor.place.max(span.end_sequence());
            self.unreadable = None;
        }
        loop {
            if let Some((span, body)) = &self.current {
                if let Some(item) = body.take(span, &mut self.cursor, false) {
                    return Step::Item(item);
                }
                self.cursor.place = self.cursor.place.max(span.end_sequence());
                self.current = None;
            }
            if let Some(step) = self.step_log() {
                return step;
            }
        }
    }

    /// All bytes up to the stop were received; the marks before it may not have been.
    fn step_stopped(&mut self, ended: bool) -> Step {
        let exited = self.log.lock().exited();
        match exited.and_then(|sequence| self.cursor.pass_exited(sequence)) {
            Some(item) => Step::Item(item),
            None if ended => Step::Last(Item::Mark(Mark::Ended)),
            None => Step::Finish,
        }
    }

    /// Looks into the log. `None` when that gave a new current segment.
    fn step_log(&mut self) -> Option<Step> {
        let state = self.log.lock();
        let entry = state.find(self.cursor.place);
        let span = entry.map_or(&state.open.span, |entry| &entry.span);
        if let Some(gap) = self.cursor.gap_to(&span.start) {
            return Some(Step::Item(gap));
        }
        self.cursor.place = self.cursor.place.max(span.first);
        if let Some(sequence) = state.exited().filter(|exited| *exited < self.cursor.place)
            && let Some(item) = self.cursor.pass_exited(sequence)
        {
            return Some(Step::Item(item));
        }
        match entry {
            Some(Entry {
                span,
                held: Held::Memory(body),
                ..
            }) => {
                self.current = Some((*span, body.clone()));
                None
            }
            Some(entry) => Some(Step::Load(entry.clone())),
            None => match state.open.body.take(span, &mut self.cursor, true) {
                Some(item) => Some(Step::Item(item)),
                None if state.ended() => Some(Step::Last(Item::Mark(Mark::Ended))),
                None => Some(Step::Wait),
            },
        }
    }

    async fn load(&mut self, entry: Entry) {
        let (log, span) = (self.log.clone(), entry.span);
        let loading = tokio::task::spawn_blocking(move || entry.load_from(&log.dir));
        let error = match loading.await {
            Ok(Ok(body)) => {
                self.current = Some((span, body));
                return;
            }
            Ok(Err(error)) => error,
            Err(error) => io::Error::other(error),
        };
        // The log may have dropped it, file and all, before we came: then it knows the gap better than we do.
        if self
            .log
            .lock()
            .find(span.first)
            .is_some_and(|found| found.span.first == span.first)
        {
            tracing::warn!(log = self.log.id, %error, "spilled output could not be read");
            self.unreadable = Some(span);
        }
    }

    fn publish(&self) {
        if let Some(id) = self.attached {
            self.log.lock().advance(id, self.cursor.at);
            self.log.room.notify_waiters();
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        self.current = None;
        if let Some(id) = self.attached.take() {
            self.log.lock().detach(id);
            self.log.room.notify_waiters();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.finish();
    }
}
