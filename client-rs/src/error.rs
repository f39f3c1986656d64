//! What can go wrong, told apart by who said so: the server, the connection, or this machine.

use std::{collections::BTreeMap, error::Error as StdError, io, path::PathBuf, time::Duration};

use sandgate_connection::{LineError, innermost};
use sandgate_errors::Refusal;
use tonic::{Code, Status};

use crate::{
    endpoint::Address,
    v1::{ErrorReason, FileError},
};

/// What every call here answers.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered, and refused.
    #[error("{}", .0.message)]
    Refused(Box<Refused>),

    /// SANDBOX_RESTARTED: the sandbox was replaced, or its runtime restarted. Its processes are gone, and nothing was
    /// run again. Never retried here, because only the caller knows what was lost with them.
    #[error("{}", .0.message)]
    Restarted(Box<Refused>),

    /// No server answers at that address.
    #[error("nothing listens on {address}")]
    NoServer {
        /// Where it was looked for.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// There may be a server, and it can't be reached.
    #[error("can't connect to {address}: {why}")]
    Connect {
        /// Where it was looked for.
        address: String,
        /// What went wrong, innermost cause.
        why: String,
        /// The same with all its causes.
        #[source]
        source: LineError,
    },

    /// The connection broke while a call was under way. Whether the call took effect is not known.
    #[error("the connection was lost: {why}")]
    Lost {
        /// What went wrong, innermost cause.
        why: String,
        /// The status that stands for it.
        #[source]
        source: Box<Status>,
    },

    /// The server was out of reach for longer than the exec's patience. The command runs on.
    #[error("no contact with the server for {} s: {last}", .patience.as_secs())]
    PatienceEnded {
        /// How long it was waited.
        patience: Duration,
        /// What the last try gave.
        #[source]
        last: Box<Error>,
    },

    /// The command takes no more input: it ended, closed its stdin, or is no longer followed.
    #[error("stdin is closed after {accepted} bytes")]
    StdinClosed {
        /// Bytes that it took.
        accepted: u64,
    },

    /// The exec is no longer followed, and it is not known to have started.
    #[error("the exec is no longer followed")]
    NotFollowed,

    /// The token is in a file that can't be read.
    #[error("can't read the token in {path}: {source}", path = .path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// An address, a token or a variable is malformed.
    #[error("bad {what}: {why}")]
    Setting {
        /// What is malformed.
        what: String,
        /// Why.
        why: String,
    },

    /// A file in the sandbox can't be read or written. The server works.
    #[error("{}: {}", .0.path, .0.message)]
    File(Box<FileError>),

    /// The server's answer lacks what the contract promises.
    #[error("the server's answer makes no sense: {0}")]
    Protocol(String),
}

/// A refusal of the server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refused {
    /// What to decide by. Nothing if this version does not know the reason: then go by the code.
    pub reason: Option<ErrorReason>,
    /// The gRPC code.
    pub code: Code,
    /// For a person.
    pub message: String,
    /// Facts for programs.
    pub metadata: BTreeMap<String, String>,
    /// The request's field at fault.
    pub field: Option<String>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// By what the server's log calls the request.
    pub request_id: Option<String>,
}

// === impl Error ===

impl Error {
    /// The server's refusal, if it is one.
    #[must_use]
    pub fn refused(&self) -> Option<&Refused> {
        match self {
            Self::Refused(refused) | Self::Restarted(refused) => Some(refused),
            Self::PatienceEnded { last, .. } => last.refused(),
            _ => None,
        }
    }

    /// Why the server refused.
    #[must_use]
    pub fn reason(&self) -> Option<ErrorReason> {
        match self {
            Self::File(error) => Some(error.reason()),
            other => other.refused()?.reason,
        }
    }

    /// The reason's name as it is sent, such as `EXEC_NOT_FOUND`.
    #[must_use]
    pub fn reason_name(&self) -> Option<&'static str> {
        self.reason().map(sandgate_errors::name)
    }

    /// The gRPC code, if there was an answer or a broken call.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Lost { source, .. } => Some(source.code()),
            other => Some(other.refused()?.code),
        }
    }

    /// The id by which the server's log calls the request.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.refused()?.request_id.as_deref()
    }

    /// Whether connecting again may help: the connection is lost, or the server or runtime is gone for now.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Refused(refused) => refused.code == Code::Unavailable,
            Self::NoServer { .. } | Self::Connect { .. } | Self::Lost { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn unreachable(address: &Address, source: LineError) -> Self {
        match io_cause(&source).map(io::Error::kind) {
            Some(kind @ (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)) => Self::NoServer {
                address: address.to_string(),
                source: kind.into(),
            },
            _ => Self::Connect {
                address: address.to_string(),
                why: innermost(&source),
                source,
            },
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let refused = Refused::new(&status);
        if refused.reason == Some(ErrorReason::SandboxRestarted) {
            return Self::Restarted(Box::new(refused));
        }
        if refused.reason.is_none() && broken(&status) {
            let why = status.source().map_or_else(|| status.message().to_owned(), innermost);
            return Self::Lost {
                why,
                source: Box::new(status),
            };
        }
        Self::Refused(Box::new(refused))
    }
}

/// Whether the transport speaks, and not a server. tonic keeps the cause of what it made up itself; a stream that was
/// reset without a status comes as UNKNOWN or CANCELLED.
fn broken(status: &Status) -> bool {
    let from_server = status.metadata().contains_key(REQUEST_ID);
    status.source().is_some() || !from_server && matches!(status.code(), Code::Unknown | Code::Cancelled)
}

/// What the system said: the innermost, because others are wrapped around it.
fn io_cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a io::Error> {
    let causes = std::iter::successors(Some(error), |error: &&'a (dyn StdError + 'static)| (*error).source());
    causes.filter_map(|cause| cause.downcast_ref()).last()
}

// === impl Refused ===

const REQUEST_ID: &str = "x-request-id";

impl Refused {
    fn new(status: &Status) -> Self {
        let request_id = status
            .metadata()
            .get(REQUEST_ID)
            .and_then(|id| id.to_str().ok())
            .map(str::to_owned);
        let mut refused = Self {
            reason: None,
            code: status.code(),
            message: status.message().to_owned(),
            metadata: BTreeMap::new(),
            field: None,
            retry_after: None,
            request_id,
        };
        if let Some(refusal) = Refusal::from_status(status) {
            refused.reason = Some(refusal.reason);
            refused.metadata = refusal.metadata;
            refused.field = refusal.field;
            refused.retry_after = refusal.retry_after;
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_all_it_says() {
        let mut status = Status::from(
            Refusal::invalid("spec.cwd", "must be absolute")
                .with("accepted", 17)
                .with_retry_after(Duration::from_secs(2)),
        );
        status.metadata_mut().insert(REQUEST_ID, "r1".parse().unwrap());
        let error = Error::from(status);
        let refused = error.refused().unwrap();
        assert_eq!(error.reason_name(), Some("INVALID_ARGUMENT"));
        assert_eq!(
            (error.code(), error.request_id()),
            (Some(Code::InvalidArgument), Some("r1"))
        );
        assert_eq!(refused.metadata["accepted"], "17");
        assert_eq!(refused.field.as_deref(), Some("spec.cwd"));
        assert_eq!(refused.retry_after, Some(Duration::from_secs(2)));
        assert!(!error.is_unavailable());
    }

    #[test]
    fn a_restart_is_an_error_of_its_own() {
        let error = Error::from(sandgate_errors::status(ErrorReason::SandboxRestarted, "gone"));
        assert!(matches!(error, Error::Restarted(_)), "{error:?}");
        assert!(!error.is_unavailable());
    }

    #[test]
    fn what_a_new_connection_helps_against() {
        let stopping = sandgate_errors::status(ErrorReason::Stopping, "bye");
        let broken = Status::from_error("broken pipe".into());
        for status in [
            stopping,
            Status::unavailable("proxy"),
            broken,
            Status::unknown("no grpc-status"),
        ] {
            let error = Error::from(status);
            assert!(error.is_unavailable(), "{error:?}");
        }
        for status in [
            Status::internal("x"),
            Status::not_found("x"),
            Status::unauthenticated("x"),
        ] {
            let error = Error::from(status);
            assert!(!error.is_unavailable(), "{error:?}");
        }
    }
}
