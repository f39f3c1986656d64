//! Batches of file operations that may be sent twice and run once.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use prost::Message as _;
use sandgate_errors::Refusal;
use sandgate_exec::{Digest, digest, task};
use sandgate_proto::{
    runtime::v1::{FileOpsRequest, FileOpsResponse},
    v1::ErrorReason,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

/// The outcomes of the last batches, by id.
#[derive(Default)]
pub(crate) struct Batches(Mutex<Table>);

#[derive(Default)]
struct Table {
    kept: HashMap<String, Batch>,
    order: VecDeque<String>,
    bytes: usize,
    expired: HashSet<Digest>,
}

struct Batch {
    request: [u8; 32],
    outcome: watch::Receiver<Option<FileOpsResponse>>,
    since: Instant,
    bytes: usize,
}

/// What a caller of a batch has to do.
pub(crate) enum Turn {
    /// Run it, and send what came of it.
    Run(watch::Sender<Option<FileOpsResponse>>),
    /// Another caller runs it, or has.
    Wait(watch::Receiver<Option<FileOpsResponse>>),
}

const KEEP_FOR: Duration = Duration::from_secs(600);
const KEEP_COUNT: usize = 1_000;
const KEEP_BYTES: usize = 16 << 20;

// === impl Batches ===

impl Batches {
    /// Runs a batch, or waits for the outcome of the first time. `run` goes on when this caller goes away.
    pub(crate) async fn once<F>(
        self: &Arc<Self>,
        request: FileOpsRequest,
        run: impl FnOnce(FileOpsRequest) -> F,
    ) -> Result<FileOpsResponse, Refusal>
    where
        F: Future<Output = FileOpsResponse> + Send + 'static,
    {
        let id = request.batch_id.clone();
        let mut outcome = match self.turn(&id, fingerprint(&request))? {
            Turn::Wait(outcome) => outcome,
            Turn::Run(done) => {
                let outcome = done.subscribe();
                let work = run(request);
                let (batches, weighed) = (self.clone(), id.clone());
                task::spawn("batch", &id, async move {
                    let answer = work.await;
                    let bytes = answer.encoded_len();
                    done.send_replace(Some(answer));
                    batches.weigh(&weighed, bytes);
                });
                outcome
            }
        };
        let answer = outcome
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|outcome| outcome.clone());
        answer.ok_or_else(|| Refusal::new(ErrorReason::Internal, "the batch did not come to its end"))
    }

    /// Whether a batch of that id was run, or is.
    pub(crate) fn knows(&self, id: &str) -> bool {
        let table = self.lock();
        table.kept.contains_key(id) || table.expired.contains(&digest(id))
    }

    fn turn(&self, id: &str, request: [u8; 32]) -> Result<Turn, Refusal> {
        let mut table = self.lock();
        table.expire();
        if table.expired.contains(&digest(id)) {
            let message = "the batch ran and its outcome is no longer kept; it is not run again";
            return Err(Refusal::new(ErrorReason::BatchExpired, message));
        }
        match table.kept.get(id) {
            Some(batch) if batch.request == request => Ok(Turn::Wait(batch.outcome.clone())),
            Some(_) => Err(Refusal::new(
                ErrorReason::BatchConflict,
                "a batch of that id held different operations",
            )),
            None => {
                let (done, outcome) = watch::channel(None);
                let batch = Batch {
                    request,
                    outcome,
                    since: Instant::now(),
                    bytes: 0,
                };
                table.kept.insert(id.to_owned(), batch);
                table.order.push_back(id.to_owned());
                Ok(Turn::Run(done))
            }
        }
    }

    /// Notes how large an outcome is, and lets go of old ones if need be.
    fn weigh(&self, id: &str, bytes: usize) {
        let mut table = self.lock();
        let Some(batch) = table.kept.get_mut(id) else { return };
        let before = std::mem::replace(&mut batch.bytes, bytes);
        table.bytes = table.bytes + bytes - before;
        table.expire();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Table ===

impl Table {
    /// Lets go of the oldest outcomes. Those that are not there yet stay.
    fn expire(&mut self) {
        let mut waiting = VecDeque::new();
        while let Some(id) = self.order.pop_front() {
            let Some(batch) = self.kept.get(&id) else { continue };
            let old = batch.since.elapsed() > KEEP_FOR || self.kept.len() > KEEP_COUNT || self.bytes > KEEP_BYTES;
            let running = batch.outcome.borrow().is_none();
            if !old {
                self.order.push_front(id);
                break;
            }
            if running {
                waiting.push_back(id);
                continue;
            }
            self.bytes -= batch.bytes;
            self.kept.remove(&id);
            self.expired.insert(digest(&id));
        }
        for id in waiting.into_iter().rev() {
            self.order.push_front(id);
        }
    }
}

fn fingerprint(request: &FileOpsRequest) -> [u8; 32] {
    let request = FileOpsRequest {
        expected_incarnation: String::new(),
        ..request.clone()
    };
    Sha256::digest(request.encode_to_vec()).into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use bytes::Bytes;
    use sandgate_proto::runtime::v1::{FileOpResult, HashResult, file_op_result};

    use super::*;

    fn request(id: &str, stop: bool) -> FileOpsRequest {
        FileOpsRequest {
            batch_id: id.into(),
            stop_on_error: stop,
            ..Default::default()
        }
    }

    fn large() -> FileOpsResponse {
        let hash = HashResult {
            sha256: Bytes::from(vec![0; 3 << 20]),
            size: 0,
        };
        FileOpsResponse {
            results: vec![FileOpResult {
                result: Some(file_op_result::Result::Hash(hash)),
            }],
        }
    }

    #[tokio::test]
    async fn runs_once_also_when_the_first_caller_leaves() {
        let batches = Arc::new(Batches::default());
        let runs = Arc::new(AtomicU32::new(0));
        let run = |runs: Arc<AtomicU32>| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            runs.fetch_add(1, Ordering::SeqCst);
            FileOpsResponse::default()
        };
        let first = batches.once(request("a", false), |_| run(runs.clone()));
        assert!(tokio::time::timeout(Duration::from_millis(1), first).await.is_err());
        for _ in 0..3 {
            batches.once(request("a", false), |_| run(runs.clone())).await.unwrap();
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        let other = batches
            .once(request("a", true), |_| run(runs.clone()))
            .await
            .unwrap_err();
        assert_eq!(other.reason, ErrorReason::BatchConflict);
    }

    #[tokio::test]
    async fn what_is_no_longer_kept_is_not_run_again() {
        let batches = Arc::new(Batches::default());
        for n in 0..8 {
            batches
                .once(request(&n.to_string(), false), |_| async { large() })
                .await
                .unwrap();
        }
        let late = batches
            .once(request("0", false), |_| async { large() })
            .await
            .unwrap_err();
        assert_eq!(late.reason, ErrorReason::BatchExpired);
        assert!(
            batches
                .once(request("7", false), |_| async { FileOpsResponse::default() })
                .await
                .is_ok()
        );
    }
}
