"""An exception for each reason of the contract. Generated from `proto/sandgate/v1/errors.proto`."""

from __future__ import annotations

import builtins

from .._core.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    SandgateError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)

__all__ = [
    "ArchiveInvalid",
    "BatchConflict",
    "BatchExpired",
    "CallerRefused",
    "CapabilityMissing",
    "DiskFull",
    "EditAmbiguous",
    "EditNoMatch",
    "EtagMismatch",
    "ExecAlreadyExists",
    "ExecExpired",
    "ExecNotFound",
    "ExecNotRunning",
    "FileAlreadyExists",
    "FileDirectoryNotEmpty",
    "FileIo",
    "FileIsDirectory",
    "FileNotDirectory",
    "FileNotFound",
    "FileNotRegular",
    "FilePermissionDenied",
    "FileTooLarge",
    "FileVersionMismatch",
    "HashMismatch",
    "Internal",
    "InvalidArgument",
    "IsolationUnavailable",
    "LimitReached",
    "NotImplementedYet",
    "PathInvalid",
    "PathOutsideRoot",
    "PatternInvalid",
    "PtyMissing",
    "SandboxAlreadyExists",
    "SandboxFailed",
    "SandboxNotFound",
    "SandboxRestarted",
    "SandboxSuspended",
    "SandboxUnreachable",
    "StdinClosed",
    "StdinGap",
    "StdinNotOpen",
    "StdinTaken",
    "Stopping",
    "TemplateNotFound",
    "Unauthenticated",
    "UploadGap",
    "UploadNotFound",
    "UserNotFound",
    "UserNotPermitted",
    "WatchLimit",
]


class InvalidArgument(InvalidArgumentError):
    """A field is missing, malformed or out of range; `google.rpc.BadRequest` names it."""

    reason = "INVALID_ARGUMENT"


class NotImplementedYet(UnimplementedError):
    """This version of Sandgate does not do that yet."""

    reason = "NOT_IMPLEMENTED"


class CapabilityMissing(UnimplementedError):
    """This sandbox's runtime or driver lacks the named capability; others may have it."""

    reason = "CAPABILITY_MISSING"


class Internal(InternalError):
    """A fault of Sandgate's own. Please report it with the request id."""

    reason = "INTERNAL"


class Stopping(UnavailableError):
    """The server or runtime is stopping: connect again and resume at the offsets you have."""

    reason = "STOPPING"


class Unauthenticated(UnauthenticatedError):
    """The call carried no token, or one that is not valid here."""

    reason = "UNAUTHENTICATED"


class LimitReached(ResourceExhaustedError):
    """A limit on live sandboxes, execs, streams or uploads is reached; `google.rpc.RetryInfo` says when to try
    again.
    """

    reason = "LIMIT_REACHED"


class CallerRefused(PermissionDeniedError):
    """The request is addressed to a name that is not the server's, or comes from a web page that may not call it."""

    reason = "CALLER_REFUSED"


class SandboxNotFound(NotFoundError):
    """No sandbox of that name."""

    reason = "SANDBOX_NOT_FOUND"


class SandboxAlreadyExists(AlreadyExistsError):
    """A sandbox of that name exists and was made with a different request."""

    reason = "SANDBOX_ALREADY_EXISTS"


class SandboxSuspended(FailedPreconditionError):
    """The sandbox is suspended: resume it, attach to it, or ask for `auto_resume`."""

    reason = "SANDBOX_SUSPENDED"


class SandboxRestarted(AbortedError):
    """The sandbox was replaced or its runtime restarted since the incarnation that the caller expects. Processes of
    the old one are gone; nothing was run again.
    """

    reason = "SANDBOX_RESTARTED"


class SandboxUnreachable(UnavailableError):
    """The sandbox exists and its runtime can't be reached right now."""

    reason = "SANDBOX_UNREACHABLE"


class SandboxFailed(FailedPreconditionError):
    """The sandbox can never become ready; the message says why."""

    reason = "SANDBOX_FAILED"


class EtagMismatch(AbortedError):
    """The etag of an update is not the current one: read the sandbox again."""

    reason = "ETAG_MISMATCH"


class TemplateNotFound(NotFoundError):
    """No template of that name."""

    reason = "TEMPLATE_NOT_FOUND"


class IsolationUnavailable(FailedPreconditionError):
    """The machine or cluster can't give an isolation mechanism that the template requires."""

    reason = "ISOLATION_UNAVAILABLE"


class ExecNotFound(NotFoundError):
    """No exec of that id was ever started in this sandbox."""

    reason = "EXEC_NOT_FOUND"


class ExecAlreadyExists(AlreadyExistsError):
    """An exec of that id was started with a different request."""

    reason = "EXEC_ALREADY_EXISTS"


class ExecExpired(FailedPreconditionError):
    """The exec ran and its record is no longer kept. It is not run again."""

    reason = "EXEC_EXPIRED"


class ExecNotRunning(FailedPreconditionError):
    """No process of the exec is alive, so there is nothing to signal."""

    reason = "EXEC_NOT_RUNNING"


class StdinNotOpen(FailedPreconditionError):
    """The exec was started without stdin."""

    reason = "STDIN_NOT_OPEN"


class StdinClosed(FailedPreconditionError):
    """The program closed its stdin, ended, or stdin was closed by a caller; the message says how far it was written."""

    reason = "STDIN_CLOSED"


class StdinTaken(FailedPreconditionError):
    """Another writer holds the exec's stdin."""

    reason = "STDIN_TAKEN"


class StdinGap(OutOfRangeError):
    """The write begins behind the bytes accepted so far: repeat from the accepted offset."""

    reason = "STDIN_GAP"


class PtyMissing(FailedPreconditionError):
    """The exec has no PTY to resize."""

    reason = "PTY_MISSING"


class PathInvalid(InvalidArgumentError):
    """A path is empty, has a NUL byte, is too long, or is relative where it can't be."""

    reason = "PATH_INVALID"


class PathOutsideRoot(PermissionDeniedError):
    """The path leads out of the root: by `..`, a symlink or a magic link."""

    reason = "PATH_OUTSIDE_ROOT"


class FileNotFound(NotFoundError, builtins.FileNotFoundError):
    """There is no such file or directory."""

    reason = "FILE_NOT_FOUND"


class FileAlreadyExists(AlreadyExistsError, builtins.FileExistsError):
    """Something is there already and the operation may not replace it."""

    reason = "FILE_ALREADY_EXISTS"


class FilePermissionDenied(PermissionDeniedError, builtins.PermissionError):
    """The user that the call acts as may not do that."""

    reason = "FILE_PERMISSION_DENIED"


class FileIsDirectory(FailedPreconditionError, builtins.IsADirectoryError):
    """The path is a directory and the operation wants a file."""

    reason = "FILE_IS_DIRECTORY"


class FileNotDirectory(FailedPreconditionError, builtins.NotADirectoryError):
    """The path, or a part before its end, is not a directory."""

    reason = "FILE_NOT_DIRECTORY"


class FileDirectoryNotEmpty(FailedPreconditionError):
    """The directory is not empty: ask for a recursive removal."""

    reason = "FILE_DIRECTORY_NOT_EMPTY"


class FileNotRegular(FailedPreconditionError):
    """The path is a socket, FIFO or device, or a symlink where none is followed."""

    reason = "FILE_NOT_REGULAR"


class FileVersionMismatch(AbortedError):
    """The file is not the version that the caller expects: read it again."""

    reason = "FILE_VERSION_MISMATCH"


class FileTooLarge(OutOfRangeError):
    """The file or the answer is too large for this call: ask for a window, or use Download."""

    reason = "FILE_TOO_LARGE"


class DiskFull(ResourceExhaustedError):
    """The disk, the quota or the inodes are used up; the old content is untouched."""

    reason = "DISK_FULL"


class FileIo(FailedPreconditionError):
    """Any other refusal of the file system; the message holds its words."""

    reason = "FILE_IO"


class EditNoMatch(NotFoundError):
    """The text to replace does not occur in the file."""

    reason = "EDIT_NO_MATCH"


class EditAmbiguous(FailedPreconditionError):
    """The text to replace occurs more than once; the error carries the count."""

    reason = "EDIT_AMBIGUOUS"


class PatternInvalid(InvalidArgumentError):
    """A glob or regular expression does not parse."""

    reason = "PATTERN_INVALID"


class HashMismatch(DataLossError):
    """The bytes received do not have the SHA-256 that the caller gave; nothing was written."""

    reason = "HASH_MISMATCH"


class ArchiveInvalid(InvalidArgumentError):
    """The archive is damaged or holds an entry that can't be made."""

    reason = "ARCHIVE_INVALID"


class BatchConflict(AlreadyExistsError):
    """A batch of that id held different operations."""

    reason = "BATCH_CONFLICT"


class BatchExpired(FailedPreconditionError):
    """The batch ran and its outcome is no longer kept. It is not run again."""

    reason = "BATCH_EXPIRED"


class UploadNotFound(NotFoundError):
    """No upload of that id is open: begin again at offset 0."""

    reason = "UPLOAD_NOT_FOUND"


class UploadGap(OutOfRangeError):
    """The chunk does not begin at the accepted offset: repeat from there."""

    reason = "UPLOAD_GAP"


class WatchLimit(ResourceExhaustedError):
    """No more file watches are to be had."""

    reason = "WATCH_LIMIT"


class UserNotFound(InvalidArgumentError):
    """The sandbox has no user of that name or number."""

    reason = "USER_NOT_FOUND"


class UserNotPermitted(PermissionDeniedError):
    """The runtime may not act as that user."""

    reason = "USER_NOT_PERMITTED"


BY_REASON: dict[str, type[SandgateError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "NOT_IMPLEMENTED": NotImplementedYet,
    "CAPABILITY_MISSING": CapabilityMissing,
    "INTERNAL": Internal,
    "STOPPING": Stopping,
    "UNAUTHENTICATED": Unauthenticated,
    "LIMIT_REACHED": LimitReached,
    "CALLER_REFUSED": CallerRefused,
    "SANDBOX_NOT_FOUND": SandboxNotFound,
    "SANDBOX_ALREADY_EXISTS": SandboxAlreadyExists,
    "SANDBOX_SUSPENDED": SandboxSuspended,
    "SANDBOX_RESTARTED": SandboxRestarted,
    "SANDBOX_UNREACHABLE": SandboxUnreachable,
    "SANDBOX_FAILED": SandboxFailed,
    "ETAG_MISMATCH": EtagMismatch,
    "TEMPLATE_NOT_FOUND": TemplateNotFound,
    "ISOLATION_UNAVAILABLE": IsolationUnavailable,
    "EXEC_NOT_FOUND": ExecNotFound,
    "EXEC_ALREADY_EXISTS": ExecAlreadyExists,
    "EXEC_EXPIRED": ExecExpired,
    "EXEC_NOT_RUNNING": ExecNotRunning,
    "STDIN_NOT_OPEN": StdinNotOpen,
    "STDIN_CLOSED": StdinClosed,
    "STDIN_TAKEN": StdinTaken,
    "STDIN_GAP": StdinGap,
    "PTY_MISSING": PtyMissing,
    "PATH_INVALID": PathInvalid,
    "PATH_OUTSIDE_ROOT": PathOutsideRoot,
    "FILE_NOT_FOUND": FileNotFound,
    "FILE_ALREADY_EXISTS": FileAlreadyExists,
    "FILE_PERMISSION_DENIED": FilePermissionDenied,
    "FILE_IS_DIRECTORY": FileIsDirectory,
    "FILE_NOT_DIRECTORY": FileNotDirectory,
    "FILE_DIRECTORY_NOT_EMPTY": FileDirectoryNotEmpty,
    "FILE_NOT_REGULAR": FileNotRegular,
    "FILE_VERSION_MISMATCH": FileVersionMismatch,
    "FILE_TOO_LARGE": FileTooLarge,
    "DISK_FULL": DiskFull,
    "FILE_IO": FileIo,
    "EDIT_NO_MATCH": EditNoMatch,
    "EDIT_AMBIGUOUS": EditAmbiguous,
    "PATTERN_INVALID": PatternInvalid,
    "HASH_MISMATCH": HashMismatch,
    "ARCHIVE_INVALID": ArchiveInvalid,
    "BATCH_CONFLICT": BatchConflict,
    "BATCH_EXPIRED": BatchExpired,
    "UPLOAD_NOT_FOUND": UploadNotFound,
    "UPLOAD_GAP": UploadGap,
    "WATCH_LIMIT": WatchLimit,
    "USER_NOT_FOUND": UserNotFound,
    "USER_NOT_PERMITTED": UserNotPermitted,
}
