"""From messages of the contract to values."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .._gen.reasons import FileIo
from ..v1 import exec_pb2, files_pb2, sandbox_pb2
from . import types
from .errors import ProtocolError, SandgateError
from .status import from_file_error
from .values import to_datetime, to_path, to_seconds

if TYPE_CHECKING:
    from datetime import datetime

    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp

    from ..v1 import sandbox_service_pb2 as service

E = TypeVar("E", bound=StrEnum)


class EnumType(Protocol):
    """An enum of the contract."""

    def Name(self, number: Any) -> str: ...  # noqa: N802


def enum(kind: type[E], wire: EnumType, prefix: str, number: int) -> E:
    """A value by its name without the prefix; `UNKNOWN` for what this version does not know."""
    try:
        return kind(wire.Name(number).removeprefix(prefix).lower())
    except ValueError:
        return kind("unknown")


def _time(message: Message, field: str) -> datetime | None:
    if not message.HasField(field):
        return None
    timestamp: Timestamp = getattr(message, field)
    return to_datetime(timestamp)


def _optional(message: Message, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


# --- sandboxes ---


def sandbox(message: sandbox_pb2.Sandbox) -> types.SandboxInfo:
    """A sandbox."""
    if not message.name:
        raise ProtocolError("the server's answer has no sandbox")
    return types.SandboxInfo(
        name=message.name,
        uid=message.uid,
        incarnation=message.incarnation,
        template=message.template,
        state=enum(types.SandboxState, sandbox_pb2.SandboxState, "SANDBOX_STATE_", message.state),
        state_message=message.state_message,
        created_at=_time(message, "created_at"),
        deadline=_time(message, "deadline"),
        idle_limit=to_seconds(message.idle_limit) if message.HasField("idle_limit") else None,
        labels=MappingProxyType(dict(message.labels)),
        etag=message.etag,
        capabilities=tuple(
            types.Capability(
                item.name,
                enum(types.CapabilityLevel, sandbox_pb2.CapabilityLevel, "CAPABILITY_LEVEL_", item.level),
                item.note,
            )
            for item in message.capabilities
        ),
        isolation=tuple(
            types.IsolationMechanism(item.mechanism, item.in_force, item.why_not, item.required)
            for item in message.isolation
        ),
        enforcement=tuple(
            types.RuleEnforcement(
                item.rule,
                enum(types.EnforcementLevel, sandbox_pb2.EnforcementLevel, "ENFORCEMENT_LEVEL_", item.level),
                item.why,
            )
            for item in message.enforcement
        ),
        connection=_connection(message.connection) if message.HasField("connection") else None,
        start=_start(message.start) if message.HasField("start") else None,
        last_end=_end(message.last_end) if message.HasField("last_end") else None,
        usage=_usage(message.usage) if message.HasField("usage") else None,
        provider=message.provider,
        driver=message.driver,
        driver_version=message.driver_version,
    )


def _connection(message: sandbox_pb2.Connection) -> types.Connection:
    mode = enum(types.ConnectionMode, sandbox_pb2.ConnectionMode, "CONNECTION_MODE_", message.mode)
    return types.Connection(mode, message.why)


def _start(message: sandbox_pb2.StartReport) -> types.StartReport:
    pool = message.pool
    return types.StartReport(
        kind=enum(types.StartKind, sandbox_pb2.StartKind, "START_KIND_", message.kind),
        cold_reason=enum(types.ColdReason, sandbox_pb2.ColdReason, "COLD_REASON_", message.cold_reason),
        message=message.message,
        total=to_seconds(message.total),
        steps=tuple((step.name, to_seconds(step.duration)) for step in message.steps),
        pool=types.WarmPool(pool.name, pool.ready, pool.wanted) if message.HasField("pool") else None,
    )


def _end(message: sandbox_pb2.IncarnationEnd) -> types.IncarnationEnd:
    return types.IncarnationEnd(message.incarnation, _cause(message.cause), message.message, _time(message, "ended_at"))


def _cause(number: int) -> types.EndCause:
    return enum(types.EndCause, sandbox_pb2.EndCause, "END_CAUSE_", number)


def _usage(message: sandbox_pb2.Usage) -> types.Usage:
    return types.Usage(
        measured_at=_time(message, "measured_at"),
        cpu_time=to_seconds(message.cpu_time) if message.HasField("cpu_time") else None,
        memory_bytes=_optional(message, "memory_bytes"),
        memory_limit_bytes=_optional(message, "memory_limit_bytes"),
        disk_bytes=_optional(message, "disk_bytes"),
        disk_limit_bytes=_optional(message, "disk_limit_bytes"),
        processes=_optional(message, "processes"),
        processes_limit=_optional(message, "processes_limit"),
        cpu_limit_millis=_optional(message, "cpu_limit_millis"),
    )


def deleted(message: service.DeleteResponse) -> types.DeleteResult:
    """What Delete says."""
    return types.DeleteResult(
        existed=message.existed,
        uid=message.uid,
        incarnation=message.incarnation,
        execs_ended=message.execs_ended,
        disk_bytes=_optional(message, "disk_bytes"),
        volumes=tuple(message.volumes),
    )


def watch_event(message: service.WatchResponse) -> types.WatchEvent | None:
    """What a watch tells; nothing for a heartbeat."""
    match message.WhichOneof("event"):
        case "snapshot":
            return types.Snapshot()
        case "sandbox":
            return types.Changed(sandbox(message.sandbox))
        case "deleted":
            gone = message.deleted
            return types.Deleted(gone.name, gone.uid, _cause(gone.cause), gone.message)
        case "synced":
            return types.Synced()
        case _:
            return None


# --- commands ---


def offsets(message: exec_pb2.ExecOffsets) -> types.Offsets:
    """Offsets of both streams."""
    return types.Offsets(message.stdout, message.stderr)


def exit_(message: exec_pb2.ExecExit) -> types.Exit:
    """How a program ended."""
    how = message.WhichOneof("status")
    return types.Exit(
        code=message.code if how == "code" else None,
        signal=message.signal if how == "signal" else None,
        lost=how not in {"code", "signal"},
        timed_out=message.timed_out,
        out_of_memory=message.out_of_memory,
        duration=to_seconds(message.duration),
        user_time=to_seconds(message.user_time),
        system_time=to_seconds(message.system_time),
        max_rss=message.max_rss,
        offsets=offsets(message.offsets),
        exited_at=_time(message, "exited_at"),
    )


def start_failure(message: exec_pb2.StartFailure) -> types.StartFailure:
    """Why a program could not be started."""
    reason = enum(types.StartFailureReason, exec_pb2.StartFailure.Reason, "REASON_", message.reason)
    return types.StartFailure(reason, message.message)


def exec_info(message: exec_pb2.ExecInfo) -> types.ExecInfo:
    """A command."""
    if not message.exec_id:
        raise ProtocolError("the server's answer has no exec")
    return types.ExecInfo(
        id=message.exec_id,
        incarnation=message.incarnation,
        state=enum(types.ExecState, exec_pb2.ExecState, "EXEC_STATE_", message.state),
        pid=message.pid,
        started_at=_time(message, "started_at"),
        start_failure=start_failure(message.start_failure) if message.HasField("start_failure") else None,
        exit=exit_(message.exit) if message.HasField("exit") else None,
        processes_alive=message.processes_alive,
        output_ended=message.output_ended,
        written=offsets(message.written),
        oldest=offsets(message.oldest),
        stdin_offset=message.stdin_offset,
        stdin_open=message.stdin_open,
        command=message.command,
        saved_path=to_path(message.saved_path, message.saved_path_raw) or None,
        save_error=message.save_error,
        saved_bytes=message.saved_bytes,
    )


def stream_output(message: exec_pb2.BudgetedOutput) -> types.StreamOutput:
    """A stream within its budget."""
    return types.StreamOutput(
        message.head, message.tail, message.omitted_bytes, message.omitted_lines, message.total_bytes
    )


# --- files ---


def file_info(message: files_pb2.FileInfo) -> types.FileInfo:
    """What the file system says of one path."""
    return types.FileInfo(
        path=to_path(message.path, message.path_raw),
        type=enum(types.FileType, files_pb2.FileType, "FILE_TYPE_", message.type),
        size=message.size,
        mode=message.mode,
        uid=message.uid,
        gid=message.gid,
        modified=_time(message, "modified"),
        modified_ns=message.modified.ToNanoseconds(),
        symlink_target=to_path(message.symlink_target, message.symlink_target_raw) or None,
        links=message.links,
        inode=message.inode,
    )


def op_error(result: files_pb2.FileOpResult) -> SandgateError | None:
    """Why one operation of a batch failed or was not run; nothing if it was done."""
    match result.WhichOneof("result"):
        case "error":
            return from_file_error(result.error)
        case "not_run":
            return FileIo("the operation was not run", reason=None)
        case None:
            return ProtocolError("an operation has no outcome")
        case _:
            return None


def read_result(message: files_pb2.ReadResult) -> types.ReadResult:
    """A part of a file."""
    return types.ReadResult(
        content=message.content,
        info=file_info(message.info),
        offset=message.offset,
        more_before=message.more_before,
        more_after=message.more_after,
        binary=message.binary,
        total_lines=message.total_lines,
        first_line=message.first_line,
        line_count=message.line_count,
    )


def glob_result(message: files_pb2.GlobResult) -> types.GlobResult:
    """What a pattern matched."""
    return types.GlobResult(
        tuple(file_info(entry) for entry in message.entries), message.truncated, message.directories_unreadable
    )


def grep_result(message: files_pb2.GrepResult) -> types.GrepResult:
    """What a search found."""
    return types.GrepResult(
        files=tuple(
            types.GrepFile(
                to_path(file.path, file.path_raw),
                tuple(types.GrepLine(line.number, line.text, line.context) for line in file.lines),
            )
            for file in message.files
        ),
        truncated=message.truncated,
        files_searched=message.files_searched,
        files_binary=message.files_binary,
        files_unreadable=message.files_unreadable,
    )


def file_event(message: files_pb2.FileEvent) -> types.FileEvent:
    """What happened to a file."""
    return types.FileEvent(
        kind=enum(types.FileEventKind, files_pb2.FileEvent.Kind, "KIND_", message.kind),
        path=to_path(message.path, message.path_raw),
        moved_from=to_path(message.moved_from, message.moved_from_raw) or None,
        directory=message.directory,
    )
