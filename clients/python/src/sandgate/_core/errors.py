"""What can go wrong: the base of all errors, one class for each gRPC code, and those that this side finds.

The classes for the reasons of the contract are generated (`_gen/reasons.py`) from its list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import grpc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .types import RunResult


class SandgateError(Exception):
    """Something did not work.

    `reason` says what to decide by, and has a class of its own. Without one go by `code`.
    """

    reason: str | None = None
    """The name of the reason as it is sent, such as `SANDBOX_NOT_FOUND`."""
    code: grpc.StatusCode | None = None
    """The gRPC code, if a server answered or a call broke."""

    def __init__(
        self,
        message: str = "",
        *,
        reason: str | None = None,
        code: grpc.StatusCode | None = None,
        request_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        """For a person."""
        self.request_id = request_id
        """By what the server's log calls the request."""
        self.metadata: dict[str, str] = dict(metadata or {})
        """Facts for programs."""
        self.retry_after = retry_after
        """When to try again, in seconds from now."""
        self.field = field
        """The field of the request that is at fault."""
        if reason is not None:
            self.reason = reason
        if code is not None:
            self.code = code

    @property
    def path(self) -> str | None:
        """The path at fault, with reasons that concern files."""
        return self.metadata.get("path")

    def of_request(self, request_id: str | None) -> Self:
        """The same error, which has that request's id if it had none."""
        self.request_id = self.request_id or request_id
        return self

    def __str__(self) -> str:
        facts = [fact for fact in (self.reason, self.request_id and f"request {self.request_id}") if fact]
        return f"{self.message} ({', '.join(facts)})" if facts else self.message


# --- one class for each gRPC code ---


class CancelledError(SandgateError):
    """The call was cancelled."""

    code = grpc.StatusCode.CANCELLED


class UnknownError(SandgateError):
    """The server does not say what went wrong."""

    code = grpc.StatusCode.UNKNOWN


class InvalidArgumentError(SandgateError):
    """The request can't be right, whatever the state of things."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class DeadlineExceededError(SandgateError, TimeoutError):
    """The answer did not come in time."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class NotFoundError(SandgateError):
    """What the call is about is not there."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExistsError(SandgateError):
    """What the call would make is there already."""

    code = grpc.StatusCode.ALREADY_EXISTS


class PermissionDeniedError(SandgateError):
    """The caller may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhaustedError(SandgateError):
    """A limit is reached."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class FailedPreconditionError(SandgateError):
    """Things are not in the state that the call needs."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class AbortedError(SandgateError):
    """Somebody else was first."""

    code = grpc.StatusCode.ABORTED


class OutOfRangeError(SandgateError):
    """An offset or a size is outside of what there is."""

    code = grpc.StatusCode.OUT_OF_RANGE


class UnimplementedError(SandgateError):
    """The server or the sandbox can't do that."""

    code = grpc.StatusCode.UNIMPLEMENTED


class InternalError(SandgateError):
    """A fault of the server's own."""

    code = grpc.StatusCode.INTERNAL


class UnavailableError(SandgateError):
    """Gone for now. Trying again may help."""

    code = grpc.StatusCode.UNAVAILABLE


class DataLossError(SandgateError):
    """Bytes were damaged on their way."""

    code = grpc.StatusCode.DATA_LOSS


class UnauthenticatedError(SandgateError):
    """The server wants to know who calls."""

    code = grpc.StatusCode.UNAUTHENTICATED


BY_CODE: dict[grpc.StatusCode, type[SandgateError]] = {
    kind.code: kind for kind in SandgateError.__subclasses__() if kind.code is not None
}

# --- what this side finds ---


class NoServer(UnavailableError, ConnectionError):
    """Nothing listens at that address."""


class ConnectionLost(UnavailableError, ConnectionError):
    """The connection broke while a call was under way. Whether the call took effect is not known."""


class PatienceEnded(UnavailableError, TimeoutError):
    """The server was out of reach for longer than the client's patience. Commands run on."""

    def __init__(self, message: str = "", *, last: SandgateError | None = None) -> None:
        super().__init__(message, request_id=last.request_id if last else None)
        self.last = last
        """What the last try gave."""


class ConfigError(SandgateError, ValueError):
    """An address, a token or a variable is malformed, or no server can be started with it."""


class ProtocolError(SandgateError):
    """The server's answer lacks what the contract promises."""


class ClosedError(SandgateError):
    """The client was closed."""


class CommandFailed(SandgateError):
    """A command that was run with `check=True` did not end with code 0."""

    def __init__(self, message: str = "", *, result: RunResult | None = None) -> None:
        super().__init__(message)
        self._result = result

    @property
    def result(self) -> RunResult:
        """What it did, with its output."""
        if self._result is None:
            raise AttributeError("result")
        return self._result


class TransferFailed(SandgateError):
    """Some entries of a directory could not be sent, made or read. The others were."""

    def __init__(self, message: str = "", *, failures: Sequence[SandgateError] = (), total: int = 0) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
        """The first of them, each with its `path`."""
        self.total = total
        """How many there were."""


class RpcFailure(Protocol):
    """What both kinds of gRPC errors have."""

    def code(self) -> grpc.StatusCode: ...
    def details(self) -> str | None: ...
    def initial_metadata(self) -> object: ...
    def trailing_metadata(self) -> object: ...
