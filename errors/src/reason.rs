//! What belongs to each reason: its gRPC code and its name on the wire.

use sandgate_proto::v1::ErrorReason;
use tonic::Code;

const PREFIX: &str = "ERROR_REASON_";

/// The gRPC code that a reason always comes with.
#[must_use]
pub fn code(reason: ErrorReason) -> Code {
    use ErrorReason as R;
    match reason {
        R::Unspecified => Code::Unknown,

        R::InvalidArgument | R::PathInvalid | R::PatternInvalid | R::ArchiveInvalid | R::UserNotFound => {
            Code::InvalidArgument
        }

        R::NotImplemented | R::CapabilityMissing => Code::Unimplemented,
        R::Internal => Code::Internal,
        R::Stopping | R::SandboxUnreachable => Code::Unavailable,
        R::Unauthenticated => Code::Unauthenticated,
        R::HashMismatch => Code::DataLoss,

        R::LimitReached | R::DiskFull | R::WatchLimit => Code::ResourceExhausted,

        R::SandboxNotFound
        | R::TemplateNotFound
        | R::ExecNotFound
        | R::FileNotFound
        | R::EditNoMatch
        | R::UploadNotFound => Code::NotFound,

        R::SandboxAlreadyExists | R::ExecAlreadyExists | R::FileAlreadyExists | R::BatchConflict => Code::AlreadyExists,

        R::SandboxSuspended
        | R::SandboxFailed
        | R::IsolationUnavailable
        | R::ExecExpired
        | R::ExecNotRunning
        | R::StdinNotOpen
        | R::StdinClosed
        | R::StdinTaken
        | R::PtyMissing
        | R::FileIsDirectory
        | R::FileNotDirectory
        | R::FileDirectoryNotEmpty
        | R::FileNotRegular
        | R::FileIo
        | R::EditAmbiguous
        | R::BatchExpired => Code::FailedPrecondition,

        R::SandboxRestarted | R::EtagMismatch | R::FileVersionMismatch => Code::Aborted,

        R::StdinGap | R::FileTooLarge | R::UploadGap => Code::OutOfRange,

        R::CallerRefused | R::PathOutsideRoot | R::FilePermissionDenied | R::UserNotPermitted => Code::PermissionDenied,
    }
}

/// The reason as it is sent in `google.rpc.ErrorInfo`: the enum value's name without its prefix.
#[must_use]
pub fn name(reason: ErrorReason) -> &'static str {
    let full = reason.as_str_name();
    full.strip_prefix(PREFIX).unwrap_or(full)
}

/// The reason of that name, without prefix, if this version knows it.
#[must_use]
pub fn from_name(name: &str) -> Option<ErrorReason> {
    ErrorReason::from_str_name(&format!("{PREFIX}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_prefix_and_are_found_again() {
        for reason in (0..200).filter_map(|n| ErrorReason::try_from(n).ok()) {
            assert!(!name(reason).starts_with(PREFIX), "{reason:?}");
            assert_eq!(from_name(name(reason)), Some(reason));
        }
        assert_eq!(name(ErrorReason::ExecNotFound), "EXEC_NOT_FOUND");
        assert_eq!(from_name("NO_SUCH_REASON"), None);
        assert_eq!(from_name("ERROR_REASON_INTERNAL"), None);
    }
}
