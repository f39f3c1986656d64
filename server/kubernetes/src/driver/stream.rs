//! Answers that are streams: pulled by the transport, alive while nothing happens.

use std::{future::Future, pin::Pin, time::Duration};

use futures_util::{Stream, stream::unfold};
use tonic::Status;

/// A stream of answers.
pub(crate) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A source of answers. `next` must lose nothing when its future is dropped.
pub(crate) trait Source: Send + 'static {
    type Item;
    fn next(&mut self) -> impl Future<Output = Option<Result<Self::Item, Status>>> + Send;
}

/// After this long without an answer a heartbeat is sent.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The source as a stream, with heartbeats. It ends after the first error.
pub(crate) fn answers<S: Source>(source: S, heartbeat: fn() -> S::Item) -> Answers<S::Item> {
    Box::pin(unfold(Some(source), move |source| async move {
        let mut source = source?;
        match tokio::time::timeout(HEARTBEAT, source.next()).await {
            Ok(Some(Err(status))) => Some((Err(status), None)),
            Ok(answer) => Some((answer?, Some(source))),
            Err(_) => Some((Ok(heartbeat()), Some(source))),
        }
    }))
}
