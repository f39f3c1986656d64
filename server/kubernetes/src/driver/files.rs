//! Files of a pod that has no calls for them: by commands in it.

mod read;
mod scripts;
mod transfer;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use prost::Message as _;
use sandgate_errors::Refusal;
use sandgate_exec::{check_id, task};
use sandgate_proto::{
    runtime::v1::{
        self as proto, FileError, FileInfo, FileOpNotRun, FileOpResult, FileOpsRequest, FileOpsResponse, FileView,
        RemoveResult, file_op::Op, file_op_not_run::Why, file_op_result::Result as Outcome,
    },
    v1::ErrorReason,
};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OnceCell, mpsc, watch};

pub(crate) use self::scripts::failure;
use super::{
    capabilities,
    inside::{Ending, Finished, Inside, finish},
    wrap::{CLAIM, TAKEN, script},
};

/// The files of one pod.
#[derive(Clone)]
pub(crate) struct Files {
    inside: Arc<dyn Inside>,
    /// Where relative paths begin.
    cwd: Arc<OnceCell<String>>,
    batches: Arc<Mutex<HashMap<String, Batch>>>,
}

/// A batch that was run here, or is.
struct Batch {
    request: [u8; 32],
    outcome: watch::Receiver<Option<Result<FileOpsResponse, Refusal>>>,
}

const MAX_OPS: usize = 1_000;
/// No answer is over 3 MiB; the rest is for what is around the results.
const ANSWER_BYTES: usize = (3 << 20) - 4096;
/// Outcomes that are kept, for callers that lost an answer.
const KEEP: usize = 100;

// === impl Files ===

impl Files {
    pub(crate) fn new(inside: Arc<dyn Inside>) -> Self {
        Self {
            inside,
            cwd: Arc::default(),
            batches: Arc::default(),
        }
    }

    /// Runs a batch of operations; one with an id, and with changes in it, once.
    pub(crate) async fn batch(&self, request: FileOpsRequest) -> Result<FileOpsResponse, Refusal> {
        if request.ops.len() > MAX_OPS {
            return Err(Refusal::invalid("ops", "at most 1,000 operations a batch"));
        }
        self.check_view(request.view.as_ref())?;
        // Before anything is done: half a batch is worse than none.
        let missing = request.ops.iter().find_map(|op| lacking(op.op.as_ref()));
        if let Some(name) = missing {
            return Err(self.missing(name));
        }
        if request.batch_id.is_empty() || !request.ops.iter().any(changes) {
            return Ok(self.run(request).await);
        }
        check_id("batch_id", &request.batch_id)?;
        let mut outcome = self.begin(request)?;
        let done = outcome
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|done| done.clone());
        done.unwrap_or_else(|| Err(Refusal::new(ErrorReason::Internal, "the batch did not come to its end")))
    }

    /// Begins a batch, or finds it. It goes on when its caller goes away.
    fn begin(
        &self,
        request: FileOpsRequest,
    ) -> Result<watch::Receiver<Option<Result<FileOpsResponse, Refusal>>>, Refusal> {
        let fingerprint: [u8; 32] = Sha256::digest(request.encode_to_vec()).into();
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        match batches.get(&request.batch_id) {
            Some(batch) if batch.request == fingerprint => return Ok(batch.outcome.clone()),
            Some(_) => {
                let message = "a batch of that id had other operations";
                return Err(Refusal::new(ErrorReason::BatchConflict, message));
            }
            None => {}
        }
        if batches.len() >= KEEP {
            // Those that are forgotten are claimed in the pod: they are refused, and not run again.
            batches.retain(|_, batch| batch.outcome.borrow().is_none());
        }
        let (done, outcome) = watch::channel(None);
        let batch = Batch {
            request: fingerprint,
            outcome: outcome.clone(),
        };
        let id = request.batch_id.clone();
        batches.insert(id.clone(), batch);
        drop(batches);
        let files = self.clone();
        task::spawn("batch", &id.clone(), async move {
            let answer = match files.claim(&id).await {
                Ok(()) => Ok(files.run(request).await),
                Err(refusal) => Err(refusal),
            };
            if answer.is_err() {
                // Nothing ran: a repeat may try again.
                files.batches.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            }
            let _ = done.send(Some(answer));
        });
        Ok(outcome)
    }

    async fn claim(&self, id: &str) -> Result<(), Refusal> {
        let finished = finish(&*self.inside, script(CLAIM, &[&format!("batch-{id}")])).await?;
        if finished.ending == Ending::Code(TAKEN) {
            let message = "the batch ran and its outcome is not kept here; it is not run again";
            return Err(Refusal::new(ErrorReason::BatchExpired, message));
        }
        Ok(())
    }

    async fn run(&self, request: FileOpsRequest) -> FileOpsResponse {
        let (mut results, mut room, mut failed) = (Vec::new(), ANSWER_BYTES, false);
        for op in request.ops {
            let outcome = if failed && request.stop_on_error {
                not_run(Why::EarlierError)
            } else if room == 0 {
                not_run(Why::AnswerFull)
            } else {
                self.one(op.op)
                    .await
                    .unwrap_or_else(|refusal| Outcome::Error(file_error(refusal)))
            };
            failed |= matches!(outcome, Outcome::Error(_));
            let mut result = FileOpResult { result: Some(outcome) };
            match room.checked_sub(result.encoded_len()) {
                Some(left) => room = left,
                // It ran, and what it read does not fit.
                None => {
                    room = 0;
                    result.result = Some(not_run(Why::AnswerFull));
                }
            }
            results.push(result);
        }
        FileOpsResponse { results }
    }

    async fn one(&self, op: Option<Op>) -> Result<Outcome, Refusal> {
        match op {
            Some(Op::Stat(op)) => {
                let path = self.path(&op.path, &op.path_raw).await?;
                self.stat(&path, op.follow).await.map(Outcome::Info)
            }
            Some(Op::List(op)) => self.list(op).await.map(Outcome::List),
            Some(Op::Read(op)) => self.read(op).await.map(Outcome::Read),
            Some(Op::Write(op)) => self.write(op).await.map(Outcome::Info),
            Some(Op::Mkdir(op)) => {
                let path = self.path(&op.path, &op.path_raw).await?;
                let mode = op.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
                self.done(scripts::MKDIR, &[&path, flag(op.parents), &mode], &path)
                    .await?;
                self.stat(&path, false).await.map(Outcome::Info)
            }
            Some(Op::Move(op)) => {
                let from = self.path(&op.from, &op.from_raw).await?;
                let to = self.path(&op.to, &op.to_raw).await?;
                let args = [&from, &to, flag(op.overwrite), flag(op.make_parents)];
                self.done(&scripts::relocate(), &args, &to).await?;
                self.stat(&to, false).await.map(Outcome::Info)
            }
            Some(Op::Copy(op)) => {
                let from = self.path(&op.from, &op.from_raw).await?;
                let to = self.path(&op.to, &op.to_raw).await?;
                let args = [
                    &from,
                    &to,
                    flag(op.overwrite),
                    flag(op.make_parents),
                    flag(op.recursive),
                ];
                self.done(&scripts::copy(), &args, &to).await?;
                self.stat(&to, false).await.map(Outcome::Info)
            }
            Some(Op::Remove(op)) => {
                let path = self.path(&op.path, &op.path_raw).await?;
                let args = [&path, flag(op.recursive), flag(op.missing_ok)];
                let finished = self.done(scripts::REMOVE, &args, &path).await?;
                let count = std::str::from_utf8(&finished.stdout)
                    .ok()
                    .and_then(|text| text.trim().parse().ok());
                Ok(Outcome::Remove(RemoveResult {
                    removed: count.unwrap_or_default(),
                }))
            }
            other => Err(self.missing(lacking(other.as_ref()).unwrap_or("files.batch"))),
        }
    }

    async fn stat(&self, path: &str, follow: bool) -> Result<FileInfo, Refusal> {
        let finished = self.done(scripts::STAT, &[path, flag(follow)], path).await?;
        let mut lines = finished.stdout.splitn(2, |byte| *byte == b'\n');
        let mut info = lines
            .next()
            .and_then(|line| scripts::facts(line, path.as_bytes()))
            .ok_or_else(odd)?;
        let target = lines.next().unwrap_or_default();
        let target = target.strip_suffix(b"\n").unwrap_or(target);
        (info.symlink_target, info.symlink_target_raw) = scripts::text_or_raw(target);
        Ok(info)
    }

    async fn write(&self, op: proto::WriteOp) -> Result<FileInfo, Refusal> {
        let how = match op.write_mode() {
            proto::WriteMode::Unspecified | proto::WriteMode::Overwrite => "replace",
            proto::WriteMode::CreateOnly => "create",
            proto::WriteMode::Append => "append",
        };
        let path = self.path(&op.path, &op.path_raw).await?;
        let (content, received) = mpsc::channel(1);
        let _ = content.try_send(op.content.clone());
        drop(content);
        let place = Place {
            path: &path,
            parents: op.make_parents,
            mode: op.mode,
            how,
            modified: None,
        };
        let temporary = self.receive(&place, received).await?;
        self.commit(&place, &temporary, op.content.len() as u64).await?;
        self.stat(&path, true).await.map(|info| FileInfo { path, ..info })
    }

    /// Takes content into a temporary file beside where it goes; answers where both really are.
    async fn receive(&self, place: &Place<'_>, content: mpsc::Receiver<Bytes>) -> Result<Temporary, Refusal> {
        let prepared = self
            .done(scripts::PREPARE, &[place.path, flag(place.parents)], place.path)
            .await?;
        let path = String::from_utf8(prepared.stdout.to_vec()).map_err(|_| odd())?;
        let (directory, name) = path.rsplit_once('/').ok_or_else(odd)?;
        let temporary = format!(
            "{directory}/.{}.{:08x}.sandgate",
            &name[..name.floor_char_boundary(100)],
            number()
        );
        let lies = self.inside.put(&temporary, content).await?;
        Ok(Temporary { lies, path })
    }

    async fn commit(&self, place: &Place<'_>, temporary: &Temporary, size: u64) -> Result<(), Refusal> {
        let mode = place.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let time = place.modified.map(|time| time.to_string()).unwrap_or_default();
        let (lies, path, size) = (&temporary.lies, &temporary.path, size.to_string());
        let args = [lies, path, size.as_str(), &mode, place.how, &time];
        self.done(scripts::COMMIT, &args, place.path).await.map(drop)
    }

    /// Runs a script that must succeed.
    async fn done(&self, text: &str, args: &[&str], path: &str) -> Result<Finished, Refusal> {
        let text = format!("export LC_ALL=C\n{text}");
        let finished = finish(&*self.inside, script(&text, args)).await?;
        if finished.is_success() {
            Ok(finished)
        } else {
            Err(failure(&finished, path))
        }
    }

    /// An absolute path.
    async fn path(&self, text: &str, raw: &[u8]) -> Result<String, Refusal> {
        if !raw.is_empty() || text.contains('\0') || text.len() > 4095 {
            let message = "a path is UTF-8 here, at most 4095 bytes, without NUL";
            return Err(Refusal::new(ErrorReason::PathInvalid, message));
        }
        if text.starts_with('/') {
            let trimmed = text.trim_end_matches('/');
            return Ok(if trimmed.is_empty() { "/" } else { trimmed }.to_owned());
        }
        let asked = self.cwd.get_or_try_init(|| async {
            let finished = self.done("pwd", &[], ".").await?;
            String::from_utf8(finished.stdout.to_vec())
                .map(|text| text.trim_end().to_owned())
                .map_err(|_| odd())
        });
        let cwd = asked.await?;
        let joined = format!("{}/{text}", cwd.trim_end_matches('/'));
        Ok(joined.trim_end_matches('/').to_owned())
    }

    fn check_view(&self, view: Option<&FileView>) -> Result<(), Refusal> {
        let Some(view) = view else { return Ok(()) };
        if !view.root_dir.is_empty() || !view.root_dir_raw.is_empty() {
            return Err(self.missing("files.root"));
        }
        if !view.user.is_empty() {
            return Err(self.missing("files.user"));
        }
        Ok(())
    }

    fn missing(&self, name: &str) -> Refusal {
        capabilities::missing(self.inside.driver(), name)
    }
}

/// Where content goes, and as what.
struct Place<'a> {
    path: &'a str,
    parents: bool,
    mode: Option<u32>,
    how: &'static str,
    modified: Option<i64>,
}

/// Content that is not in its place yet.
struct Temporary {
    lies: String,
    path: String,
}

/// What an operation needs that commands do not do.
fn lacking(op: Option<&Op>) -> Option<&'static str> {
    match op {
        Some(Op::Stat(_) | Op::List(_) | Op::Read(_) | Op::Mkdir(_) | Op::Move(_) | Op::Copy(_) | Op::Remove(_)) => {
            None
        }
        Some(Op::Write(op)) if op.expected.is_none() => None,
        Some(Op::Glob(_)) => Some("files.glob"),
        Some(Op::Grep(_)) => Some("files.grep"),
        _ => Some("files.batch"),
    }
}

fn changes(op: &proto::FileOp) -> bool {
    !matches!(
        op.op,
        Some(Op::Stat(_) | Op::List(_) | Op::Read(_) | Op::Glob(_) | Op::Grep(_))
    )
}

fn not_run(why: Why) -> Outcome {
    Outcome::NotRun(FileOpNotRun { why: why.into() })
}

fn flag(set: bool) -> &'static str {
    if set { "1" } else { "0" }
}

/// Commands of the sandbox that say something else than everywhere.
fn odd() -> Refusal {
    Refusal::new(
        ErrorReason::FileIo,
        "the commands in the sandbox answer in a way that is not understood",
    )
}

fn number() -> u32 {
    let mut bytes = [0; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}

fn file_error(mut refusal: Refusal) -> FileError {
    FileError {
        reason: refusal.reason.into(),
        path: refusal.metadata.remove("path").unwrap_or_default(),
        message: refusal.message,
        ..FileError::default()
    }
}
