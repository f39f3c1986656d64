"""From what gRPC and the contract say of a failure to an exception of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import grpc
from google.rpc import error_details_pb2, status_pb2  # pyright: ignore[reportMissingTypeStubs]

from .._gen.reasons import BY_REASON, FileIo
from ..v1 import errors_pb2
from .errors import BY_CODE, ConnectionLost, NoServer, RpcFailure, SandgateError
from .values import to_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..v1 import files_pb2

DOMAIN = "sandgate.dev"
REQUEST_ID = "x-request-id"
DETAILS = "grpc-status-details-bin"
PREFIX = "ERROR_REASON_"


def from_rpc(error: grpc.RpcError) -> SandgateError:
    """The error of a call."""
    failure = cast("RpcFailure", error)
    code, message = failure.code(), failure.details() or ""
    metadata = _pairs(failure.initial_metadata()) | _pairs(failure.trailing_metadata())
    request_id = _text(metadata.get(REQUEST_ID))
    details = status_pb2.Status()
    if (raw := metadata.get(DETAILS)) is not None:
        details.ParseFromString(raw if isinstance(raw, bytes) else raw.encode())
    if not details.details and request_id is None and (broken := _broken(code, message)):
        return broken
    return _refused(details, code, message, request_id)


def from_file_error(error: files_pb2.FileError) -> SandgateError:
    """The error of one operation or entry. The call itself went well."""
    name = _reason_name(error.reason)
    kind = BY_REASON.get(name or "", FileIo)
    path = to_path(error.path, error.path_raw)
    metadata = {"path": path}
    if error.count:
        metadata["count"] = str(error.count)
    return kind(f"{path}: {error.message}" if path else error.message, reason=name, metadata=metadata)


def _refused(details: status_pb2.Status, code: grpc.StatusCode, message: str, request_id: str | None) -> SandgateError:
    info, retry, bad = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), error_details_pb2.BadRequest()
    for detail in details.details:
        for known in (info, retry, bad):
            detail.Unpack(known)
    reason = info.reason if info.domain == DOMAIN and info.reason else None
    retry_after = retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None
    kind = BY_REASON.get(reason or "") or BY_CODE.get(code, SandgateError)
    return kind(
        message,
        reason=reason,
        code=code,
        request_id=request_id,
        metadata=dict(info.metadata),
        retry_after=retry_after,
        field=next((violation.field for violation in bad.field_violations), None),
    )


def _broken(code: grpc.StatusCode, message: str) -> SandgateError | None:
    """Whether the transport speaks, and not a server: those put a request id on every answer."""
    # A stream that was reset comes as INTERNAL, but for a request that breaks the protocol (1).
    reset = "RST_STREAM" in message and not message.endswith("error code 1")
    if not reset and code not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED}:
        return None
    if "failed to connect" in message.lower():
        return NoServer(f"can't connect: {_innermost(message)}")
    return ConnectionLost(f"the connection was lost: {message}")


def _innermost(message: str) -> str:
    return message.rsplit("last error: ", 1)[-1].removeprefix("UNKNOWN: ").removeprefix("UNAVAILABLE: ")


def _pairs(metadata: object) -> dict[str, str | bytes]:
    pairs = cast("Iterable[tuple[str, str | bytes]]", metadata or ())
    return dict(iter(pairs))


def _text(value: str | bytes | None) -> str | None:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else value


def _reason_name(number: int) -> str | None:
    try:
        name = errors_pb2.ErrorReason.Name(cast("errors_pb2.ErrorReason.ValueType", number))
    except ValueError:
        return None
    return name.removeprefix(PREFIX)
