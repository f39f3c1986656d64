"""One exception for each reason, and what is made of statuses."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2  # pyright: ignore[reportMissingTypeStubs]

import sandgate
from sandgate import errors
from sandgate._core import status
from sandgate._core.errors import BY_CODE
from sandgate._gen.reasons import BY_REASON
from sandgate.v1 import errors_pb2, exec_pb2, files_pb2, sandbox_pb2


class Failure(grpc.RpcError):
    def __init__(
        self, code: grpc.StatusCode, message: str = "", *, details: bytes | None = None, request_id: str | None = None
    ) -> None:
        super().__init__()
        self._code, self._message, self._request_id = code, message, request_id
        self._details = details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._message

    def initial_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-request-id", self._request_id),) if self._request_id else ()

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self._details),) if self._details else ()


def refusal(reason: str, code: grpc.StatusCode, domain: str = "sandgate.dev") -> Failure:
    info = error_details_pb2.ErrorInfo(domain=domain, reason=reason, metadata={"accepted": "17"})
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=2, nanos=500_000_000))
    violation = error_details_pb2.BadRequest.FieldViolation(field="spec.cwd")
    bad = error_details_pb2.BadRequest(field_violations=[violation])
    details = status_pb2.Status()
    for detail in (info, retry, bad):
        details.details.add().Pack(detail)
    return Failure(code, "why", details=details.SerializeToString(), request_id="r1")


def test_every_reason_has_a_class_with_its_code() -> None:
    values = errors_pb2.ErrorReason.DESCRIPTOR.values
    names = {value.name.removeprefix("ERROR_REASON_") for value in values if value.number}
    assert set(BY_REASON) == names
    assert len(set(BY_REASON.values())) == len(names)
    # What docs/errors.md says of each holds here too.
    page = Path(__file__).parents[3] / "docs" / "errors.md"
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \|", page.read_text(), re.MULTILINE)
    assert {reason for reason, _ in rows} == names
    for reason, code in rows:
        kind = BY_REASON[reason]
        assert (kind.reason, kind.code) == (reason, grpc.StatusCode[code])
        assert issubclass(kind, BY_CODE[grpc.StatusCode[code]])
        assert getattr(errors, kind.__name__) is kind
        assert kind.__module__ == "sandgate.errors"
        assert kind.__doc__


def test_every_code_has_a_class() -> None:
    assert set(BY_CODE) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


@pytest.mark.parametrize("reason", sorted(BY_REASON))
def test_a_refusal_keeps_all_it_says(reason: str) -> None:
    kind = BY_REASON[reason]
    assert kind.code is not None
    error = status.from_rpc(refusal(reason, kind.code))
    assert type(error) is kind
    assert (error.reason, error.code, error.message, error.request_id) == (reason, kind.code, "why", "r1")
    assert (error.metadata, error.retry_after, error.field) == ({"accepted": "17"}, 2.5, "spec.cwd")
    assert str(error) == f"why ({reason}, request r1)"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.metadata) == (kind, str(error), error.metadata)


def test_an_unknown_reason_goes_by_its_code() -> None:
    error = status.from_rpc(refusal("FROM_THE_FUTURE", grpc.StatusCode.ABORTED))
    assert type(error) is errors.AbortedError
    assert error.reason == "FROM_THE_FUTURE"
    foreign = status.from_rpc(refusal("FILE_IO", grpc.StatusCode.ABORTED, domain="example.org"))
    assert (type(foreign), foreign.reason) == (errors.AbortedError, None)
    assert type(status.from_rpc(Failure(grpc.StatusCode.OUT_OF_RANGE))) is errors.OutOfRangeError


def test_what_a_new_connection_helps_against() -> None:
    lost = [
        Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        Failure(grpc.StatusCode.UNKNOWN, "no status"),
        Failure(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
    ]
    for failure in lost:
        assert type(status.from_rpc(failure)) is errors.ConnectionLost
    refused = Failure(
        grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses; last error: UNKNOWN: x: refused"
    )
    assert str(status.from_rpc(refused)) == "can't connect: x: refused"
    assert isinstance(status.from_rpc(refused), errors.NoServer)
    for failure in (
        Failure(grpc.StatusCode.UNKNOWN, "told", request_id="r"),
        Failure(grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 1"),
        Failure(grpc.StatusCode.NOT_FOUND),
    ):
        assert not isinstance(status.from_rpc(failure), errors.UnavailableError)
    assert isinstance(status.from_rpc(Failure(grpc.StatusCode.UNAVAILABLE, request_id="r")), errors.UnavailableError)


def test_files_have_reasons_too() -> None:
    error = status.from_file_error(
        files_pb2.FileError(reason=errors_pb2.ERROR_REASON_EDIT_AMBIGUOUS, message="m", path_raw=b"/\xff", count=3)
    )
    assert isinstance(error, errors.EditAmbiguous)
    assert (error.path, error.metadata["count"]) == ("/\udcff", "3")
    unknown = status.from_file_error(files_pb2.FileError(reason=9999, message="m"))  # pyright: ignore[reportArgumentType]
    assert isinstance(unknown, errors.FileIo)


def test_every_value_of_the_contract_has_a_name() -> None:
    pairs = [
        (sandgate.SandboxState, sandbox_pb2.SandboxState, "SANDBOX_STATE_"),
        (sandgate.CapabilityLevel, sandbox_pb2.CapabilityLevel, "CAPABILITY_LEVEL_"),
        (sandgate.EnforcementLevel, sandbox_pb2.EnforcementLevel, "ENFORCEMENT_LEVEL_"),
        (sandgate.ConnectionMode, sandbox_pb2.ConnectionMode, "CONNECTION_MODE_"),
        (sandgate.StartKind, sandbox_pb2.StartKind, "START_KIND_"),
        (sandgate.ColdReason, sandbox_pb2.ColdReason, "COLD_REASON_"),
        (sandgate.EndCause, sandbox_pb2.EndCause, "END_CAUSE_"),
        (sandgate.ExecState, exec_pb2.ExecState, "EXEC_STATE_"),
        (sandgate.StartFailureReason, exec_pb2.StartFailure.Reason, "REASON_"),
        (sandgate.FileType, files_pb2.FileType, "FILE_TYPE_"),
        (sandgate.FileEventKind, files_pb2.FileEvent.Kind, "KIND_"),
    ]
    for kind, wire, prefix in pairs:
        names = {name.removeprefix(prefix).lower() for name in wire.keys()}  # noqa: SIM118
        assert {str(value) for value in kind} == names - {"unspecified"} | {"unknown"}, kind
