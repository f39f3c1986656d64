//! How long to go on trying when there is no server to talk to.

use std::{future::Future, time::Duration};

use rand::Rng as _;
use tokio::time::Instant;
use tonic::{Response, Status};

use crate::{
    client::{Client, RawClient},
    error::{Error, Result},
};

const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// One time without contact: from the first failure to the next answer.
#[derive(Debug)]
pub(crate) struct Outage {
    patience: Duration,
    since: Option<Instant>,
    tries: u32,
}

// === impl Outage ===

impl Outage {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            patience,
            since: None,
            tries: 0,
        }
    }

    /// There is contact.
    pub(crate) fn over(&mut self) {
        self.since = None;
        self.tries = 0;
    }

    /// How long to wait before the next try, or the error to give up with: one that trying again does not help
    /// against, or the end of patience.
    pub(crate) fn failed(&mut self, error: Error) -> Result<Duration> {
        if !error.is_unavailable() {
            return Err(error);
        }
        let left = self
            .patience
            .saturating_sub(self.since.get_or_insert_with(Instant::now).elapsed());
        if left.is_zero() {
            return Err(Error::PatienceEnded {
                patience: self.patience,
                last: Box::new(error),
            });
        }
        let wanted = error
            .refused()
            .and_then(|refused| refused.retry_after)
            .unwrap_or_default();
        let delay = jittered(self.tries).max(wanted.min(LONGEST_DELAY)).min(left);
        self.tries = self.tries.saturating_add(1);
        Ok(delay)
    }
}

/// Doubles with each try, and is spread, so that many clients of one server do not come back at once.
fn jittered(tries: u32) -> Duration {
    let delay = FIRST_DELAY.saturating_mul(1 << tries.min(10)).min(LONGEST_DELAY);
    delay.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// Makes a call that may be repeated after a lost answer, until it is answered or patience ends.
pub(crate) async fn repeat<T, F>(client: &Client, mut call: impl FnMut(RawClient) -> F) -> Result<T>
where
    F: Future<Output = std::result::Result<Response<T>, Status>>,
{
    let mut outage = Outage::new(client.patience());
    loop {
        match call(client.raw()).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => tokio::time::sleep(outage.failed(status.into())?).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Error {
        Status::unavailable("gone").into()
    }

    #[tokio::test(start_paused = true)]
    async fn patience_counts_from_the_first_failure_and_starts_again_after_contact() {
        let patience = Duration::from_secs(60);
        let mut outage = Outage::new(patience);
        for _ in 0..2 {
            let begin = Instant::now();
            let error = loop {
                match outage.failed(lost()) {
                    Ok(delay) => tokio::time::sleep(delay).await,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Error::PatienceEnded { .. }), "{error:?}");
            assert_eq!(begin.elapsed().as_secs(), 60);
            outage.over();
            tokio::time::sleep(patience * 10).await;
        }
    }

    #[test]
    fn what_is_no_outage_is_told_at_once() {
        let error = Outage::new(Duration::MAX)
            .failed(Status::not_found("x").into())
            .unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        let mut none = Outage::new(Duration::ZERO);
        assert!(matches!(none.failed(lost()), Err(Error::PatienceEnded { .. })));
    }

    #[test]
    fn delays_grow_to_a_bound() {
        for tries in 0..40 {
            let most = FIRST_DELAY.saturating_mul(1 << tries.min(10)).min(LONGEST_DELAY);
            let delay = jittered(tries);
            assert!(delay >= most / 2 && delay <= most, "{tries}: {delay:?}");
        }
    }
}
