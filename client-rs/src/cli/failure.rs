//! What a command tells when it fails: what, why by the contract's name, the request's id, and what to do next.

use std::{io, process::ExitCode};

use sandgate::{
    Error,
    v1::{ErrorReason, FileError},
};
use serde::Serialize;

use super::{
    USAGE,
    output::{Format, clean},
};

/// Sandgate itself failed, as opposed to what it was asked to run.
const SANDGATE_FAILED: u8 = 125;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The server refused, or is out of reach.
    #[error(transparent)]
    Client(Box<Error>),

    /// stdout can't be written. That its reader is gone is no failure.
    #[error("can't write to stdout: {}", plain(.0))]
    Stdout(#[source] io::Error),

    /// A file of this machine can't be read or written.
    #[error("{what}: {}", plain(source))]
    Local {
        /// The file, or what was attempted.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// A file operation in the sandbox failed. The server works.
    #[error("{}", describe(.0))]
    File(FileError),

    /// The command line makes no sense, which only turned out later.
    #[error("{0}")]
    Usage(String),

    /// Anything else that kept the command from doing its work.
    #[error("{0}")]
    Other(String),
}

/// A failure as JSON on stderr.
#[derive(Debug, Serialize)]
struct View {
    error: Inner,
}

#[derive(Debug, Serialize)]
struct Inner {
    message: String,
    reason: Option<String>,
    code: Option<String>,
    field: Option<String>,
    request_id: Option<String>,
    hint: Option<&'static str>,
}

// === impl Failure ===

impl Failure {
    /// A failure at a file of this machine.
    pub(crate) fn local(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Local { what, source }
    }

    /// An answer without what the contract promises.
    pub(crate) fn incomplete(what: &str) -> Self {
        Error::Protocol(format!("it has no {what}")).into()
    }

    /// Tells it on stderr.
    pub(crate) fn report(&self, format: Format) -> ExitCode {
        if !self.is_reader_gone() {
            // With stderr closed there is nobody to tell; the code says enough.
            _ = self.print(&mut io::stderr().lock(), format);
        }
        ExitCode::from(self.code())
    }

    /// Tells it on stderr and goes on, for commands that do several things.
    pub(crate) fn note(&self, about: &str, format: Format) {
        _ = match format {
            Format::Text => self.print_text(&mut io::stderr().lock(), &format!("{about}: {}", self.line())),
            Format::Json => Ok(()),
        };
    }

    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What to exit with.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Stdout(_) if self.is_reader_gone() => 0,
            Self::Usage(_) => USAGE,
            Self::Client(error) if matches!(**error, Error::Setting { .. }) => USAGE,
            Self::File(_) | Self::Local { .. } => 1,
            Self::Client(_) | Self::Stdout(_) | Self::Other(_) => SANDGATE_FAILED,
        }
    }

    /// The reason's name, if the server gave one.
    pub(crate) fn reason(&self) -> Option<String> {
        let reason = match self {
            Self::Client(error) => error.reason()?,
            Self::File(error) => error.reason(),
            _ => return None,
        };
        let full = reason.as_str_name();
        Some(full.strip_prefix("ERROR_REASON_").unwrap_or(full).to_owned())
    }

    /// The request's field at fault, if the server named one.
    fn field(&self) -> Option<&str> {
        match self {
            Self::Client(error) => error.refused()?.field.as_deref(),
            _ => None,
        }
    }

    fn request_id(&self) -> Option<&str> {
        match self {
            Self::Client(error) => error.request_id(),
            _ => None,
        }
    }

    /// `MESSAGE (REASON, request ID)`, with the field at fault before it.
    pub(crate) fn line(&self) -> String {
        let request = self.request_id().map(|id| format!("request {id}"));
        let code = match self {
            Self::Client(error) if error.reason().is_none() => {
                error.refused().map(|refused| format!("{:?}", refused.code))
            }
            _ => None,
        };
        let facts: Vec<String> = self.reason().or(code).into_iter().chain(request).collect();
        let message = match self.field() {
            Some(field) => format!("{field}: {self}"),
            None => self.to_string(),
        };
        match facts.is_empty() {
            true => message,
            false => format!("{message} ({})", facts.join(", ")),
        }
    }

    fn print(&self, out: &mut dyn io::Write, format: Format) -> io::Result<()> {
        match format {
            Format::Json => {
                serde_json::to_writer(&mut *out, &self.view())?;
                writeln!(out)
            }
            Format::Text => self.print_text(out, &self.line()),
        }
    }

    /// Some messages have several lines, as those that point into a pattern.
    fn print_text(&self, out: &mut dyn io::Write, message: &str) -> io::Result<()> {
        let lines: Vec<_> = message.lines().map(clean).collect();
        writeln!(out, "sandgate: {}", lines.join("\n  "))?;
        self.hint().map_or(Ok(()), |hint| writeln!(out, "  {hint}"))
    }

    fn view(&self) -> View {
        View {
            error: Inner {
                message: self.to_string(),
                reason: self.reason(),
                code: match self {
                    Self::Client(error) => error.code().map(|code| format!("{code:?}")),
                    _ => None,
                },
                field: self.field().map(str::to_owned),
                request_id: self.request_id().map(str::to_owned),
                hint: self.hint(),
            },
        }
    }

    /// What to do next.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Client(error) => match &**error {
                Error::NoServer { .. } | Error::Connect { .. } => Some(
                    "Start a server with `sandgate-server`, or `make run` in a clone of Sandgate; or say where it is: \
                     --addr or SANDGATE_ADDR.",
                ),
                Error::Lost { .. } => {
                    Some("Whether the call took effect is not known: look with `sandgate ls` or `sandgate get`.")
                }
                Error::TokenFile { .. } => {
                    Some("Run as the user who owns it, or give the token: --token or SANDGATE_TOKEN.")
                }
                error => error.reason().and_then(hint_for),
            },
            Self::File(error) => hint_for(error.reason()),
            Self::Usage(_) => Some("`--help` shows how."),
            _ => None,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(Box::new(error))
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        Error::from(status).into()
    }
}

/// What the system said, without what the libraries add: the error's number, and the name of a temporary file.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((said, _)) => said.to_owned(),
        None => text,
    }
}

fn describe(error: &FileError) -> String {
    let path = match error.path_raw.is_empty() {
        true => error.path.as_str().into(),
        false => String::from_utf8_lossy(&error.path_raw),
    };
    match path.is_empty() || error.message.contains(path.as_ref()) {
        true => error.message.clone(),
        false => format!("{path}: {}", error.message),
    }
}

/// What to do about a reason; nothing where the message says it all.
fn hint_for(reason: ErrorReason) -> Option<&'static str> {
    use ErrorReason as R;
    Some(match reason {
        R::Unauthenticated => {
            "Give the server's token: --token or SANDGATE_TOKEN. It is in the file `token` of the server's state directory."
        }
        R::Internal => "This is a fault of Sandgate: please report it with the request id.",
        R::Stopping | R::SandboxUnreachable => "Try again in a moment.",
        R::LimitReached => "Remove what you no longer need (`sandgate ls`, `sandgate rm`), or try again later.",
        R::SandboxNotFound => "`sandgate ls` shows those that exist.",
        R::SandboxAlreadyExists => "Take another name, or remove that one first: `sandgate rm`.",
        R::SandboxSuspended => "Bring it back with `sandgate resume`.",
        R::SandboxRestarted => "Its processes are gone and nothing was run again: look with `sandgate get`.",
        R::SandboxFailed => "Remove it with `sandgate rm`.",
        R::EtagMismatch => "Somebody else changed it: look with `sandgate get`, and try again.",
        R::TemplateNotFound => "`sandgate-server config` shows the templates of the server.",
        R::IsolationUnavailable => {
            "docs/local.md says what each mechanism needs, and what to do where it can't be had."
        }
        R::ExecNotFound => "`sandgate ps` shows those that are known.",
        R::ExecAlreadyExists => "Take another --id, or look at that one: `sandgate ps`, `sandgate follow`.",
        R::FileIsDirectory => "`sandgate cp -r` copies directories, `sandgate files ls` lists them.",
        R::FileDirectoryNotEmpty => "Remove what is in it too with -r.",
        R::FileAlreadyExists => {
            "`files mv` replaces a file with -f; `files mkdir` takes a directory that is there with -p."
        }
        R::FilePermissionDenied => "Act as another user with --user.",
        R::EditAmbiguous => "Give more of the text around it, or replace all with --all.",
        R::DiskFull => "Remove files, or make a sandbox from a template with a larger disk.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use sandgate_errors::Refusal;
    use tonic::Status;

    use super::*;

    fn refused(reason: ErrorReason, message: &str, id: &str) -> Failure {
        let mut status = Status::from(Refusal::new(reason, message));
        status.metadata_mut().insert("x-request-id", id.parse().unwrap());
        status.into()
    }

    fn printed(failure: &Failure, format: Format) -> String {
        let mut out = Vec::new();
        failure.print(&mut out, format).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_refusal_names_reason_request_and_remedy() {
        let failure = refused(ErrorReason::SandboxNotFound, "no sandbox demo", "r-1");
        assert_eq!(
            printed(&failure, Format::Text),
            "sandgate: no sandbox demo (SANDBOX_NOT_FOUND, request r-1)\n  `sandgate ls` shows those that exist.\n"
        );
        assert_eq!(failure.code(), 125);
        let json: serde_json::Value = serde_json::from_str(&printed(&failure, Format::Json)).unwrap();
        assert_eq!(json["error"]["message"], "no sandbox demo");
        assert_eq!(json["error"]["reason"], "SANDBOX_NOT_FOUND");
        assert_eq!(json["error"]["code"], "NotFound");
        assert_eq!(json["error"]["request_id"], "r-1");
        assert_eq!(json["error"]["hint"], "`sandgate ls` shows those that exist.");
    }

    #[test]
    fn a_file_error_is_an_answer_and_no_fault_of_ours() {
        let error = FileError {
            reason: ErrorReason::FileNotFound.into(),
            message: "no such file".into(),
            path: "/x".into(),
            ..FileError::default()
        };
        let failure = Failure::File(error);
        assert_eq!(
            printed(&failure, Format::Text),
            "sandgate: /x: no such file (FILE_NOT_FOUND)\n"
        );
        assert_eq!(failure.code(), 1);
    }

    #[test]
    fn a_field_at_fault_is_named() {
        let failure = Failure::from(Status::from(Refusal::invalid("spec.cwd", "must be absolute")));
        assert_eq!(
            printed(&failure, Format::Text),
            "sandgate: spec.cwd: must be absolute (INVALID_ARGUMENT)\n"
        );
        let json: serde_json::Value = serde_json::from_str(&printed(&failure, Format::Json)).unwrap();
        assert_eq!(json["error"]["field"], "spec.cwd");
    }

    #[test]
    fn what_the_system_says_is_said_plainly() {
        let unnamed = tempfile::tempfile_in("/no/such").unwrap_err();
        let named = tempfile::NamedTempFile::new_in("/no/such").unwrap_err();
        for source in [unnamed, named] {
            let failure = Failure::Local {
                what: "x".into(),
                source,
            };
            assert_eq!(failure.to_string(), "x: No such file or directory");
        }
        assert_eq!(plain(&io::Error::other("odd")), "odd");
    }

    #[test]
    fn a_message_of_several_lines_keeps_them() {
        let failure = refused(ErrorReason::PatternInvalid, "a\n b\x07", "r");
        assert_eq!(
            printed(&failure, Format::Text),
            "sandgate: a\n   b\\u{7} (PATTERN_INVALID, request r)\n"
        );
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        assert_eq!(Failure::Stdout(io::ErrorKind::BrokenPipe.into()).code(), 0);
        assert_eq!(Failure::Stdout(io::ErrorKind::StorageFull.into()).code(), 125);
    }

    #[test]
    fn usage_is_64() {
        assert_eq!(Failure::Usage("x".into()).code(), 64);
        let address = "nonsense://".parse::<sandgate::Address>().unwrap_err();
        assert_eq!(Failure::from(address).code(), 64);
    }

    #[test]
    fn messages_can_not_drive_the_terminal() {
        let failure = refused(ErrorReason::FileIo, "bad \x1b[2J name", "r");
        assert!(!printed(&failure, Format::Text).contains('\x1b'));
    }
}
