//! A batch of operations, answered in order, within the size of one answer.

use prost::Message as _;
use sandgate_proto::runtime::v1::{
    FileOp, FileOpNotRun, FileOpResult, file_op_not_run::Why, file_op_result::Result as Outcome,
};

use crate::{
    atomic::Shared,
    ops::{self, Context},
    view::View,
};

/// Room that every answer but content and lists fits in: a few paths of 4095 bytes, and a message. An operation that
/// changes something is not begun with less, because its answer could not be given.
const ROOM_TO_BEGIN: usize = 32 << 10;
/// What an answer takes besides itself; also enough for "not run".
const FRAMING: usize = 12;

/// Runs operations one after the other, as the view's user, and answers each. Blocks, so it belongs on a thread for that.
///
/// The answers together have at most `budget_bytes` bytes as they are sent. From the first operation on whose answer finds
/// no room, none is run.
pub fn run_batch(
    view: &View,
    ops: Vec<FileOp>,
    stop_on_error: bool,
    budget_bytes: usize,
    shared: &Shared,
) -> Vec<FileOpResult> {
    let acting = match view.act() {
        Ok(acting) => acting,
        Err(error) => {
            return ops
                .iter()
                .map(|_| answer(Outcome::Error(error.clone().into())))
                .collect();
        }
    };
    let mut room = budget_bytes.saturating_sub(ops.len() * FRAMING);
    let mut not_run = None;
    let mut results = Vec::with_capacity(ops.len());
    for op in ops {
        if not_run.is_none() && room < ROOM_TO_BEGIN {
            not_run = Some(Why::AnswerFull);
        }
        let outcome = match not_run {
            Some(why) => skipped(why),
            None => run_one(view, op, room, shared),
        };
        not_run = match &outcome {
            Outcome::Error(_) if stop_on_error => Some(Why::EarlierError),
            Outcome::NotRun(skipped) => Some(skipped.why()),
            _ => None,
        };
        let result = answer(outcome);
        room = room.saturating_sub(result.encoded_len());
        results.push(result);
    }
    drop(acting);
    results
}

fn run_one(view: &View, op: FileOp, room: usize, shared: &Shared) -> Outcome {
    let context = Context { view, shared, room };
    let outcome = ops::run(context, op).unwrap_or_else(|error| Outcome::Error(error.into()));
    // Only what was read can be larger than `ROOM_TO_BEGIN`, and can be read again.
    let result = answer(outcome);
    if result.encoded_len() > room {
        skipped(Why::AnswerFull)
    } else {
        result.result.unwrap_or(skipped(Why::Unspecified))
    }
}

fn skipped(why: Why) -> Outcome {
    Outcome::NotRun(FileOpNotRun { why: why.into() })
}

fn answer(outcome: Outcome) -> FileOpResult {
    FileOpResult { result: Some(outcome) }
}
