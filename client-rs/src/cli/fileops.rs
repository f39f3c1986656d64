//! Calls for files that `cp` and `files` share: as whom, and one operation at a time.

use bytes::Bytes;
use sandgate::{
    Client,
    v1::{
        FileError, FileInfo, FileOp, FileOpsRequest, FileView, StatOp, file_op::Op, file_op_result::Result as Outcome,
    },
};

use super::{Failure, place::Remote};

/// As whom files are touched, and whether a suspended sandbox is woken for it.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Acting {
    /// The user in the sandbox that opens, makes and owns files. The template's if it is left out
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) user: String,
    /// Resume the sandbox first if it is suspended
    #[arg(long)]
    pub(crate) resume: bool,
}

// === impl Acting ===

impl Acting {
    /// The whole sandbox, as that user.
    pub(crate) fn view(&self) -> FileView {
        FileView {
            user: self.user.clone(),
            ..FileView::default()
        }
    }

    /// Only what is beneath a directory, as that user.
    pub(crate) fn view_of(&self, (root_dir, root_dir_raw): (String, Bytes)) -> FileView {
        FileView {
            root_dir,
            root_dir_raw,
            user: self.user.clone(),
        }
    }
}

/// Does one operation. Its own error is a failure of the command.
pub(crate) async fn one(client: &Client, acting: &Acting, sandbox: &str, op: Op) -> Result<Outcome, Failure> {
    let request = FileOpsRequest {
        sandbox: sandbox.to_owned(),
        auto_resume: acting.resume,
        view: Some(acting.view()),
        ops: vec![FileOp { op: Some(op) }],
        ..FileOpsRequest::default()
    };
    let answer = client.raw().file_ops(request).await?.into_inner();
    let outcome = answer.results.into_iter().next().and_then(|result| result.result);
    match outcome.ok_or_else(|| Failure::incomplete("outcome"))? {
        Outcome::Error(error) => Err(Failure::File(error)),
        Outcome::NotRun(_) => Err(Failure::incomplete("room for the outcome")),
        outcome => Ok(outcome),
    }
}

/// An outcome of another operation than the one that was asked for.
pub(crate) fn misfit() -> Failure {
    Failure::incomplete("outcome of the kind that was asked for")
}

/// Facts about one path.
pub(crate) async fn stat(client: &Client, acting: &Acting, place: &Remote, follow: bool) -> Result<FileInfo, Failure> {
    let (path, path_raw) = place.wire();
    let op = Op::Stat(StatOp { path, path_raw, follow });
    match one(client, acting, &place.sandbox, op).await? {
        Outcome::Info(info) => Ok(info),
        _ => Err(misfit()),
    }
}

/// A file error's path, as text.
pub(crate) fn error_path(error: &FileError) -> String {
    match error.path_raw.is_empty() {
        true => error.path.clone(),
        false => String::from_utf8_lossy(&error.path_raw).into_owned(),
    }
}
