"""Between Python's values and those of the wire: paths, spans, times, commands, ids."""

from __future__ import annotations

import os
import secrets
import signal as signals
import string
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import duration_pb2, timestamp_pb2

from ..v1 import exec_pb2

Span = float | timedelta
"""A length of time, in seconds or as `timedelta`."""
Path = str | bytes | os.PathLike[str]
"""A path in a sandbox. What is not UTF-8 is `bytes`, or text with surrogate escapes, as `os.fsdecode` makes it."""
Command = str | Sequence[str]
"""A script for `/bin/sh -c`, or a program and its arguments."""

_ALPHABET = string.ascii_letters + string.digits


def new_id() -> str:
    """A new id for an exec, batch, upload or writer. 62^20: no two callers meet."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(20))


def new_request_id() -> str:
    """By what the server's log calls a request. Made here, so that it is known also if no answer comes."""
    return secrets.token_hex(8)


def seconds(span: Span) -> float:
    """A span in seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def to_duration(span: Span | None) -> duration_pb2.Duration | None:
    """A span as it is sent."""
    if span is None:
        return None
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds(span) * 1e9))
    return duration


def to_seconds(duration: duration_pb2.Duration) -> float:
    """A span as it came."""
    return duration.seconds + duration.nanos / 1e9


def to_timestamp(time: datetime | None) -> timestamp_pb2.Timestamp | None:
    """A time as it is sent. One without a zone is taken as local, as Python does."""
    if time is None:
        return None
    timestamp = timestamp_pb2.Timestamp()
    timestamp.FromDatetime(time.astimezone(UTC))
    return timestamp


def to_datetime(timestamp: timestamp_pb2.Timestamp) -> datetime:
    """A time as it came, in UTC."""
    return timestamp.ToDatetime(tzinfo=UTC)


def path_fields(path: Path, name: str = "path") -> dict[str, Any]:
    """A path as the two fields that every message has for it."""
    raw = os.fsencode(path) if not isinstance(path, str) else path.encode("utf-8", "surrogateescape")
    try:
        return {name: raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_raw": raw}


def to_path(path: str, raw: bytes) -> str:
    """A path as it came."""
    return raw.decode("utf-8", "surrogateescape") if raw else path


def to_bytes(data: str | bytes | bytearray | memoryview) -> bytes:
    """Content: text is UTF-8."""
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)


def env_vars(env: Mapping[str, str] | None) -> list[exec_pb2.EnvVar]:
    """An environment as it is sent."""
    return [exec_pb2.EnvVar(name=name, **path_fields(value, "value")) for name, value in (env or {}).items()]


def argv(command: Command) -> dict[str, Any]:
    """A command as the field of `ExecSpec` that it goes into."""
    if isinstance(command, str):
        return {"shell": command}
    args = list(command)
    fields = [path_fields(arg, "arg") for arg in args]
    if all("arg" in field for field in fields):
        return {"argv": exec_pb2.Argv(args=args)}
    return {"argv": exec_pb2.Argv(args_raw=[arg.encode("utf-8", "surrogateescape") for arg in args])}


def signal_number(signal: int | str) -> int:
    """A signal by its number or name: 15, `TERM`, `SIGTERM`, `signal.SIGTERM`."""
    if isinstance(signal, str):
        name = signal.upper()
        return int(signals.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    return int(signal)
