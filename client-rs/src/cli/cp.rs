//! `sandgate cp`: files and directories between this machine and sandboxes, or between two sandboxes.
//!
//! Nothing is held in memory but a few chunks. What arrives here appears whole, by renaming, or not at all.

mod bridge;
mod download;
mod pack;
mod progress;
mod unpack;
mod upload;

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use sandgate::{
    Client,
    v1::{CopyOp, ErrorReason, FileError, FileInfo, FileType, file_op::Op, file_op_result::Result as Outcome},
};
use serde::Serialize;

use super::{
    Context, Failure, Format,
    fileops::{self, Acting},
    output::{self, Show, Text},
    place::{Place, Remote, place},
};

/// Copy files and directories into, out of and between sandboxes
///
/// One side, or both, is `NAME:/path`; `-` is stdin or stdout. As with cp, a directory that is there is copied into. A
/// directory is copied with -r; with `-` on the other side it is a tar stream. Permission bits and times are kept, owners
/// are not. A file whose name looks like `NAME:…` is written `./NAME:…`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandgate cp notes.txt demo:/workspace/
  sandgate cp -r demo:/workspace/out results
  echo hello | sandgate cp - demo:/workspace/hello.txt
  sandgate cp demo:/etc/os-release -
  sandgate cp -r demo:/workspace - | tar -t")]
pub(crate) struct Args {
    /// What to copy
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Where to
    #[arg(value_name = "DST")]
    target: OsString,
    /// Copy directories with everything in them
    #[arg(long, short)]
    recursive: bool,
    /// Also make symlinks here that lead out of DST. They may lead anywhere on this machine
    #[arg(long)]
    keep_links: bool,
    #[command(flatten)]
    acting: Acting,
}

/// What a copy needs to know.
struct Copy<'a> {
    client: &'a Client,
    acting: &'a Acting,
    recursive: bool,
    keep_links: bool,
}

/// An entry that was not copied, or not wholly.
#[derive(Debug, Serialize)]
struct Trouble {
    path: String,
    reason: Option<String>,
    message: String,
}

/// What became of a copy.
#[derive(Debug, Default, Serialize)]
struct Report {
    entries: u64,
    bytes: u64,
    failed: u64,
    failures: Vec<Trouble>,
}

pub(crate) async fn run(args: Args, ctx: &Context) -> Result<ExitCode, Failure> {
    let (source, target) = (place(&args.source), place(&args.target));
    check(&source, &target)?;
    let client = ctx.client().await?;
    let copy = Copy {
        client: &client,
        acting: &args.acting,
        recursive: args.recursive,
        keep_links: args.keep_links,
    };
    let to_stdout = target == Place::Standard;
    let report = copy.run(source, target).await?;
    if ctx.output == Format::Text || to_stdout {
        report
            .failures
            .iter()
            .for_each(|trouble| output::note(&trouble.to_string()));
    }
    if !to_stdout {
        output::show(ctx.output, &report)?;
    }
    Ok(ExitCode::from(u8::from(report.failed > 0)))
}

/// Prints a file of any size, for `files cat`.
pub(crate) async fn print(client: &Client, acting: &Acting, source: &Remote) -> Result<(), Failure> {
    let copy = Copy {
        client,
        acting,
        recursive: false,
        keep_links: false,
    };
    let info = fileops::stat(client, acting, source, true).await?;
    if info.r#type() == FileType::Directory {
        return Err(Failure::File(FileError {
            reason: ErrorReason::FileIsDirectory.into(),
            message: "it is a directory".into(),
            path: info.path,
            path_raw: info.path_raw,
            count: 0,
        }));
    }
    download::to_stdout(&copy, source, &info).await.map(drop)
}

/// Whether one side is in a sandbox, before a server is asked.
fn check(source: &Place, target: &Place) -> Result<(), Failure> {
    match (source, target) {
        (Place::Remote(_), _) | (_, Place::Remote(_)) => Ok(()),
        _ => Err(Failure::Usage(
            "neither side is in a sandbox: write it as NAME:/path".into(),
        )),
    }
}

// === impl Copy ===

impl Copy<'_> {
    async fn run(&self, source: Place, target: Place) -> Result<Report, Failure> {
        match (source, target) {
            (Place::Remote(source), Place::Remote(target)) => self.across(&source, target).await,
            (Place::Remote(source), Place::Local(target)) => self.take_out(&source, &target).await,
            (Place::Remote(source), Place::Standard) => self.to_stdout(&source).await,
            (Place::Local(source), Place::Remote(target)) => self.put_in(&source, target).await,
            (Place::Standard, Place::Remote(target)) => self.put_stdin(target).await,
            (source, target) => check(&source, &target).map(|()| Report::default()),
        }
    }

    async fn put_in(&self, source: &Path, target: Remote) -> Result<Report, Failure> {
        let found = std::fs::metadata(source).map_err(Failure::local(source.display().to_string()))?;
        let target = self.within(target, contents_name(source), found.is_dir()).await?;
        if found.is_dir() {
            self.want_recursive(&source.display())?;
            return upload::directory(self, source.to_owned(), &target).await;
        }
        upload::file(self, source.to_owned(), &target).await
    }

    async fn put_stdin(&self, target: Remote) -> Result<Report, Failure> {
        match self.recursive {
            true => upload::tar_from_stdin(self, &target).await,
            false => upload::stdin(self, &target).await,
        }
    }

    async fn take_out(&self, source: &Remote, target: &Path) -> Result<Report, Failure> {
        let info = fileops::stat(self.client, self.acting, source, true).await?;
        let directory = info.r#type() == FileType::Directory;
        let into = target.is_dir() || !directory && target.as_os_str().as_encoded_bytes().ends_with(b"/");
        let target = match source.file_name().filter(|_| into) {
            Some(name) => target.join(name),
            None => target.to_owned(),
        };
        if directory {
            self.want_recursive(source)?;
            return download::directory(self, source, &info, target).await;
        }
        download::file(self, source, &info, target).await
    }

    async fn to_stdout(&self, source: &Remote) -> Result<Report, Failure> {
        let info = fileops::stat(self.client, self.acting, source, true).await?;
        if info.r#type() == FileType::Directory {
            self.want_recursive(source)?;
        }
        download::to_stdout(self, source, &info).await
    }

    async fn across(&self, source: &Remote, target: Remote) -> Result<Report, Failure> {
        let info = fileops::stat(self.client, self.acting, source, true).await?;
        let directory = info.r#type() == FileType::Directory;
        if directory {
            self.want_recursive(source)?;
        }
        let target = self.within(target, source.file_name(), directory).await?;
        if source.sandbox == target.sandbox {
            return self.inside(source, &target).await;
        }
        download::across(self, source, &info, &target).await
    }

    /// Within one sandbox nothing needs to travel.
    async fn inside(&self, source: &Remote, target: &Remote) -> Result<Report, Failure> {
        let ((from, from_raw), (to, to_raw)) = (source.wire(), target.wire());
        let op = Op::Copy(CopyOp {
            from,
            from_raw,
            to,
            to_raw,
            overwrite: true,
            recursive: self.recursive,
            make_parents: true,
        });
        match fileops::one(self.client, self.acting, &source.sandbox, op).await? {
            Outcome::Info(info) => Ok(Report {
                entries: 1,
                bytes: regular_size(&info),
                ..Report::default()
            }),
            _ => Err(fileops::misfit()),
        }
    }

    /// Where something of that name goes: into the target if that is a directory, or is written as one and a file comes.
    async fn within(&self, target: Remote, name: Option<OsString>, directory: bool) -> Result<Remote, Failure> {
        let Some(name) = name else {
            return Ok(target);
        };
        let into = target.ends_with_slash() && !directory || self.is_directory(&target).await?;
        Ok(if into { target.join(&name) } else { target })
    }

    async fn is_directory(&self, place: &Remote) -> Result<bool, Failure> {
        match fileops::stat(self.client, self.acting, place, true).await {
            Ok(info) => Ok(info.r#type() == FileType::Directory),
            Err(Failure::File(error)) if error.reason() == ErrorReason::FileNotFound => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn want_recursive(&self, what: &dyn std::fmt::Display) -> Result<(), Failure> {
        match self.recursive {
            true => Ok(()),
            false => Err(Failure::Usage(format!("{what} is a directory: copy it with -r"))),
        }
    }
}

fn regular_size(info: &FileInfo) -> u64 {
    if info.r#type() == FileType::Regular {
        info.size
    } else {
        0
    }
}

/// The name that a local source gets in a directory that is there; nothing if its content goes there itself, as of `.`
/// and `dir/.`.
fn contents_name(source: &Path) -> Option<OsString> {
    let written = source.as_os_str().as_encoded_bytes();
    if written.ends_with(b"/.") {
        return None;
    }
    source.file_name().map(Into::into)
}

/// A local path as messages show it.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// A local target that is written in place: replacing a device by a file is never meant.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// The file that a path leads to, so that a link stays and what it leads to is replaced.
fn resolved(path: PathBuf) -> PathBuf {
    std::fs::canonicalize(&path).unwrap_or(path)
}

// === impl Trouble ===

impl Trouble {
    /// With a file of this machine.
    fn here(path: &Path, message: &str) -> Self {
        Self {
            path: shown(path),
            reason: None,
            message: message.into(),
        }
    }
}

impl From<FileError> for Trouble {
    fn from(error: FileError) -> Self {
        let path = fileops::error_path(&error);
        let message = error.message.clone();
        Self {
            path,
            message,
            reason: Failure::File(error).reason(),
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)?;
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, " ({reason})"))
    }
}

// === impl Report ===

impl Show for Report {
    fn text(&self, to: &mut Text<'_>) -> io::Result<()> {
        let more = self.failed.saturating_sub(self.failures.len() as u64);
        match more {
            0 => Ok(()),
            more => to.line(format!("{more} more failed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_side_must_be_in_a_sandbox() {
        let at = |text: &str| place(std::ffi::OsStr::new(text));
        for (source, target) in [("a", "b"), ("-", "b"), ("a", "-"), ("-", "-"), ("./demo:/x", "b")] {
            assert_eq!(
                check(&at(source), &at(target)).unwrap_err().code(),
                64,
                "{source} {target}"
            );
        }
        for (source, target) in [
            ("demo:/a", "b"),
            ("a", "demo:/b"),
            ("-", "demo:/b"),
            ("demo:/a", "-"),
            ("a:/x", "b:/x"),
        ] {
            assert!(check(&at(source), &at(target)).is_ok(), "{source} {target}");
        }
    }

    #[test]
    fn a_dot_at_the_end_means_what_is_inside() {
        for (source, name) in [
            ("dir", Some("dir")),
            ("a/dir/", Some("dir")),
            ("dir/.", None),
            (".", None),
            ("..", None),
            ("/", None),
        ] {
            assert_eq!(contents_name(Path::new(source)), name.map(Into::into), "{source}");
        }
    }

    #[test]
    fn the_report_is_stable() {
        let report = Report {
            entries: 2,
            bytes: 10,
            failed: 1,
            failures: vec![
                FileError {
                    reason: ErrorReason::DiskFull.into(),
                    message: "no space".into(),
                    path: "/x".into(),
                    ..FileError::default()
                }
                .into(),
            ],
        };
        assert_eq!(report.failures[0].to_string(), "/x: no space (DISK_FULL)");
        assert_eq!(
            serde_json::to_value(report).unwrap(),
            json!({"entries": 2, "bytes": 10, "failed": 1,
                   "failures": [{"path": "/x", "reason": "DISK_FULL", "message": "no space"}]})
        );
    }

    #[test]
    fn devices_are_not_replaced() {
        assert!(is_special(Path::new("/dev/null")));
        assert!(!is_special(Path::new("/")) && !is_special(Path::new("/no/such/file")));
    }
}
