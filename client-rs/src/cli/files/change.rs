//! `files edit`, `rm`, `mv` and `mkdir`.

use std::{ffi::OsString, io, os::unix::ffi::OsStringExt as _, process::ExitCode};

use sandgate::{
    Client,
    v1::{EditOp, MkdirOp, MoveOp, RemoveOp, file_op::Op, file_op_result::Result as Outcome},
};
use serde::Serialize;

use super::view::FileView;
use crate::cli::{
    Context, Failure,
    fileops::{self, Acting},
    output::{self, Show, Text},
    place::{Remote, remote},
};

/// Replace text in a file
///
/// The text must occur exactly once, unless --all is given. The file is replaced whole; mode, owner and line ends stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files edit demo:app.py --old 'x = 1' --new 'x = 2'
  sandgate files edit demo:notes.txt --old colour --new color --all")]
pub(super) struct EditArgs {
    /// The file
    #[arg(value_name = "NAME:PATH", value_parser = remote())]
    place: Remote,
    /// What to look for, exactly
    #[arg(long, value_name = "TEXT")]
    old: OsString,
    /// What to put there
    #[arg(long, value_name = "TEXT")]
    new: OsString,
    /// Replace every occurrence
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    acting: Acting,
}

/// Remove files and directories
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files rm demo:/workspace/old.txt
  sandgate files rm -rf demo:build demo:dist")]
pub(super) struct RmArgs {
    /// The paths
    #[arg(required = true, value_name = "NAME:PATH", value_parser = remote())]
    places: Vec<Remote>,
    /// Also what is in directories
    #[arg(long, short)]
    recursive: bool,
    /// That nothing is there is no error
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    acting: Acting,
}

/// Rename a file or directory within a sandbox
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files mv demo:draft.txt demo:final.txt
  sandgate files mv -p demo:a.txt demo:deep/er/a.txt")]
pub(super) struct MvArgs {
    /// From here
    #[arg(value_name = "NAME:FROM", value_parser = remote())]
    from: Remote,
    /// To exactly this path in the same sandbox
    #[arg(value_name = "NAME:TO", value_parser = remote())]
    to: Remote,
    /// Replace a file that is there
    #[arg(long, short)]
    force: bool,
    /// Make missing directories above it
    #[arg(long, short)]
    parents: bool,
    #[command(flatten)]
    acting: Acting,
}

/// Make directories
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate files mkdir -p demo:/workspace/a/b/c")]
pub(super) struct MkdirArgs {
    /// The directories
    #[arg(required = true, value_name = "NAME:PATH", value_parser = remote())]
    places: Vec<Remote>,
    /// Make missing ones above it too; that it exists is then no error
    #[arg(long, short)]
    parents: bool,
    /// Permission bits, in octal
    #[arg(long, short, value_parser = mode)]
    mode: Option<u32>,
    #[command(flatten)]
    acting: Acting,
}

#[derive(Debug, Serialize)]
struct EditView {
    replacements: u64,
    file: FileView,
}

#[derive(Debug, Serialize)]
struct RmView {
    removed: Vec<Removed>,
}

#[derive(Debug, Serialize)]
struct Removed {
    sandbox: String,
    path: String,
    removed: u64,
    error: Option<Told>,
}

#[derive(Debug, Serialize)]
struct Told {
    message: String,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct FileResult {
    file: FileView,
}

#[derive(Debug, Serialize)]
struct FilesResult {
    files: Vec<FileView>,
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "expected octal digits such as 755".into())
}

pub(super) async fn edit(args: EditArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let (path, path_raw) = args.place.wire();
    let op = Op::Edit(EditOp {
        path,
        path_raw,
        old_text: args.old.into_vec().into(),
        new_text: args.new.into_vec().into(),
        replace_all: args.all,
        expected: None,
    });
    let Outcome::Edit(edited) = fileops::one(&client, &args.acting, &args.place.sandbox, op).await? else {
        return Err(fileops::misfit());
    };
    let view = EditView {
        replacements: edited.replacements,
        file: edited.info.unwrap_or_default().into(),
    };
    output::show(ctx.output, &view)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rm(args: RmArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let mut worst = 0;
    let mut removed = Vec::new();
    for place in &args.places {
        let outcome = remove(&client, &args, place).await;
        if let Err(failure) = &outcome {
            failure.note(&place.sandbox, ctx.output);
            worst = worst.max(failure.code());
        }
        removed.push(Removed::new(place, outcome));
    }
    output::show(ctx.output, &RmView { removed })?;
    Ok(ExitCode::from(worst))
}

async fn remove(client: &Client, args: &RmArgs, place: &Remote) -> Result<u64, Failure> {
    let (path, path_raw) = place.wire();
    let op = Op::Remove(RemoveOp {
        path,
        path_raw,
        recursive: args.recursive,
        missing_ok: args.force,
    });
    match fileops::one(client, &args.acting, &place.sandbox, op).await? {
        Outcome::Remove(removed) => Ok(removed.removed),
        _ => Err(fileops::misfit()),
    }
}

pub(super) async fn mv(args: MvArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    if args.from.sandbox != args.to.sandbox {
        return Err(Failure::Usage(
            "both paths must be in one sandbox: between two, use `sandgate cp`".into(),
        ));
    }
    let client = ctx.client().await?;
    let ((from, from_raw), (to, to_raw)) = (args.from.wire(), args.to.wire());
    let op = Op::Move(MoveOp {
        from,
        from_raw,
        to,
        to_raw,
        overwrite: args.force,
        make_parents: args.parents,
    });
    let file = info(&client, &args.acting, &args.from.sandbox, op).await?;
    output::show(ctx.output, &FileResult { file })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn mkdir(args: MkdirArgs, ctx: &Context) -> Result<ExitCode, Failure> {
    let client = ctx.client().await?;
    let mut files = Vec::new();
    for place in &args.places {
        let (path, path_raw) = place.wire();
        let op = Op::Mkdir(MkdirOp {
            path,
            path_raw,
            parents: args.parents,
            mode: args.mode,
        });
        files.push(info(&client, &args.acting, &place.sandbox, op).await?);
    }
    output::show(ctx.output, &FilesResult { files })?;
    Ok(ExitCode::SUCCESS)
}

async fn info(client: &Client, acting: &Acting, sandbox: &str, op: Op) -> Result<FileView, Failure> {
    match fileops::one(client, acting, sandbox, op).await? {
        Outcome::Info(info) => Ok(info.into()),
        _ => Err(fileops::misfit()),
    }
}

// === impl views ===

impl Removed {
    fn new(place: &Remote, outcome: Result<u64, Failure>) -> Self {
        let (removed, error) = match outcome {
            Ok(removed) => (removed, None),
            Err(failure) => (
                0,
                Some(Told {
                    message: failure.to_string(),
                    reason: failure.reason(),
                }),
            ),
        };
        Self {
            sandbox: place.sandbox.clone(),
            path: String::from_utf8_lossy(&place.path).into_owned(),
            removed,
            error,
        }
    }
}

impl Show for EditView {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        let times = if self.replacements == 1 {
            "1 replacement".into()
        } else {
            format!("{} replacements", self.replacements)
        };
        to.line(format!("{}: {times}", self.file.path))
    }
}

impl Show for RmView {
    /// As rm: silent, unless something went wrong, which is told on stderr.
    fn text(&self, _to: &mut Text<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl Show for FileResult {
    fn text(&self, _to: &mut Text<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl Show for FilesResult {
    fn text(&self, _to: &mut Text<'_>) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sandgate::v1::{ErrorReason, FileError};
    use serde_json::json;

    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(mode("755"), Ok(0o755));
        assert_eq!(mode("01777"), Ok(0o1777));
        for wrong in ["", "8", "rwx", "10000", "-1"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_removal_says_how_many_or_why_not() {
        let place = Remote {
            sandbox: "demo".into(),
            path: b"/x".to_vec(),
        };
        assert_eq!(
            serde_json::to_value(Removed::new(&place, Ok(3))).unwrap(),
            json!({"sandbox": "demo", "path": "/x", "removed": 3, "error": null})
        );
        let error = FileError {
            reason: ErrorReason::FileDirectoryNotEmpty.into(),
            message: "not empty".into(),
            ..FileError::default()
        };
        assert_eq!(
            serde_json::to_value(Removed::new(&place, Err(Failure::File(error)))).unwrap()["error"],
            json!({"message": "not empty", "reason": "FILE_DIRECTORY_NOT_EMPTY"})
        );
    }
}
