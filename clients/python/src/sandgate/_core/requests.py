"""From arguments to messages of the contract. Each is built once, for both clients."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import field_mask_pb2, timestamp_pb2

from ..v1 import exec_pb2, files_pb2, sandbox_pb2
from ..v1 import sandbox_service_pb2 as service
from . import types
from .values import argv, env_vars, new_id, path_fields, to_bytes, to_duration, to_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from .values import Command, Path, Span

ONE_CALL: Final = 50.0
"""One call waits no longer than this, because load balancers cut silent calls."""


class Unset:
    """Stands for an argument that was not given, where `None` has a meaning."""

    def __repr__(self) -> str:
        return "unchanged"


UNSET: Final = Unset()


@dataclass(frozen=True, slots=True)
class Target:
    """Which sandbox calls are for, and how they treat a change of it."""

    name: str
    incarnation: str = ""
    auto_resume: bool = False

    def expecting(self, incarnation: str) -> Target:
        """The same, in that incarnation alone."""
        return replace(self, incarnation=incarnation)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that most messages have for it."""
        return {"sandbox": self.name, "expected_incarnation": self.incarnation, "auto_resume": self.auto_resume}

    @property
    def guarded(self) -> dict[str, Any]:
        """Those of messages that never resume."""
        return {"sandbox": self.name, "expected_incarnation": self.incarnation}

    @property
    def read(self) -> dict[str, Any]:
        """Those of messages that only look."""
        return {"sandbox": self.name, "auto_resume": self.auto_resume}


class Countdown:
    """A span of time that runs out."""

    def __init__(self, span: float) -> None:
        self._end = time.monotonic() + span

    def left(self) -> float:
        """What is left of it, in seconds."""
        return max(0.0, self._end - time.monotonic())


# --- sandboxes ---


def create(
    name: str | None,
    template: str | None,
    labels: Mapping[str, str] | None,
    env: Mapping[str, str] | None,
    ttl: Span | None,
    deadline: datetime | None,
    idle: Span | None,
    warm_pool: str | None,
    connection: str | None,
    volumes: Sequence[types.Volume],
) -> service.CreateRequest:
    """Create. How long to wait is set for each call."""
    if ttl is not None and deadline is not None:
        raise ValueError("ttl and deadline are two words for one thing: give one of them")
    return service.CreateRequest(
        name=name or "",
        template=template or "",
        labels=labels or {},
        env=env_vars(env),
        ttl=to_duration(ttl),
        deadline=to_timestamp(deadline),
        idle_limit=to_duration(idle),
        warm_pool=warm_pool or "",
        connection_mode=connection_mode(connection),
        volumes=[
            service.Volume(name=volume.name, bytes=volume.bytes, storage_class=volume.storage_class or "")
            for volume in volumes
        ],
    )


def connection_mode(connection: str | None) -> sandbox_pb2.ConnectionMode.ValueType:
    """A way to reach a sandbox, by its name; without one the server chooses. What is not one raises `ValueError`."""
    if connection is None:
        return sandbox_pb2.CONNECTION_MODE_UNSPECIFIED
    known = [mode for mode in types.ConnectionMode if mode is not types.ConnectionMode.UNKNOWN]
    if connection not in known:
        raise ValueError(f"connection is one of {', '.join(known)}, not {connection!r}")
    return sandbox_pb2.ConnectionMode.Value(f"CONNECTION_MODE_{connection.upper()}")


def update(
    target: Target,
    ttl: Span | Unset,
    deadline: datetime | Unset | None,
    idle: Span | Unset | None,
    labels: Mapping[str, str] | Unset,
    etag: str,
) -> service.UpdateRequest:
    """Update of what is given."""
    settings, mask = service.SandboxSettings(), list[str]()
    if not isinstance(ttl, Unset):
        settings.ttl.CopyFrom(to_duration(ttl) or settings.ttl)
        mask.append("ttl")
    if not isinstance(deadline, Unset):
        if deadline is not None:
            settings.deadline.CopyFrom(to_timestamp(deadline) or settings.deadline)
        mask.append("deadline")
    if not isinstance(idle, Unset):
        settings.idle_limit.CopyFrom(to_duration(idle or 0) or settings.idle_limit)
        mask.append("idle_limit")
    if not isinstance(labels, Unset):
        settings.labels.update(labels)
        mask.append("labels")
    return service.UpdateRequest(
        sandbox=target.name, settings=settings, update_mask=field_mask_pb2.FieldMask(paths=mask), etag=etag
    )


# --- commands ---


def spec(
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    clear_env: bool = False,
    cwd: Path | None = None,
    user: str | None = None,
    timeout: Span | None = None,
    kill_grace: Span | None = None,
    stdin: bool = False,
    merge_stderr: bool = False,
    pty: types.Pty | None = None,
    hold: bool = False,
    save_output: types.SaveOutput | None = None,
) -> exec_pb2.ExecSpec:
    """What to run, and how."""
    message = exec_pb2.ExecSpec(
        **argv(command),
        **(path_fields(cwd, "cwd") if cwd is not None else {}),
        env=env_vars(env),
        clear_env=clear_env,
        user=user or "",
        timeout=to_duration(timeout),
        kill_grace=to_duration(kill_grace),
    )
    if stdin:
        message.stdin = exec_pb2.STDIN_MODE_OPEN
    if merge_stderr:
        message.stderr = exec_pb2.STDERR_MODE_MERGED
    if hold:
        message.on_full = exec_pb2.ON_FULL_HOLD
    if pty is not None:
        size = exec_pb2.PtySize(columns=pty.columns, rows=pty.rows)
        message.pty.CopyFrom(exec_pb2.Pty(size=size, term=pty.term))
    if save_output is not None:
        saved = exec_pb2.SaveOutput(
            **path_fields(save_output.path), after_bytes=save_output.after, max_bytes=save_output.limit or 0
        )
        message.save_output.CopyFrom(saved)
    return message


def run(
    target: Target, exec_id: str, what: exec_pb2.ExecSpec, budget: types.OutputBudget, grace: float
) -> service.RunRequest:
    """Run. A caller that is gone for longer than the grace has its command killed."""
    return service.RunRequest(
        **target.fields,
        exec_id=exec_id,
        spec=what,
        max_wait=to_duration(ONE_CALL),
        budget=exec_pb2.OutputBudget(head_bytes=budget.head, tail_bytes=budget.tail),
        on_caller_gone=exec_pb2.ON_CALLER_GONE_KILL,
        caller_grace=to_duration(grace),
    )


def failure_text(command: Command, result: types.RunResult) -> str:
    """What to say of a command that was to succeed."""
    shown = command if isinstance(command, str) else shlex.join(command)
    how = result.start_failure.message if result.start_failure else str(result.exit)
    last = result.stderr.strip().rpartition("\n")[2] or result.stdout.strip().rpartition("\n")[2]
    return f"{_short(shown)!r}: {how}" + (f": {_short(last)}" if last else "")


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"


def write_stdin(
    target: Target, exec_id: str, writer: str, offset: int, data: bytes, *, close: bool
) -> service.WriteExecRequest:
    """WriteExec."""
    stdin = exec_pb2.StdinWrite(offset=offset, data=data, close=close)
    return service.WriteExecRequest(**target.guarded, exec_id=exec_id, stdin=stdin, writer=writer)


# --- files ---


@dataclass(frozen=True, slots=True)
class View:
    """Where paths begin, and as whom files are touched."""

    root_dir: Path | None = None
    user: str | None = None

    def beneath(self, path: str) -> View:
        """The view whose `/` is that path of this one."""
        root = os.fsdecode(self.root_dir) if self.root_dir is not None else ""
        return replace(self, root_dir=f"{root.rstrip('/')}/{path.lstrip('/')}")

    @property
    def message(self) -> files_pb2.FileView | None:
        """As it is sent."""
        if self.root_dir is None and self.user is None:
            return None
        root = path_fields(self.root_dir, "root_dir") if self.root_dir is not None else {}
        return files_pb2.FileView(**root, user=self.user or "")


def batch(
    target: Target, view: View, ops: Sequence[files_pb2.FileOp], *, stop_on_error: bool = False
) -> service.FileOpsRequest:
    """FileOps, with an id that makes it safe to repeat."""
    return service.FileOpsRequest(
        **target.fields, batch_id=new_id(), view=view.message, ops=ops, stop_on_error=stop_on_error
    )


def version(expected: types.Version | None) -> files_pb2.FileVersion | None:
    """A version to compare with."""
    if expected is None:
        return None
    if expected.sha256 is not None:
        return files_pb2.FileVersion(sha256=expected.sha256)
    modified = timestamp_pb2.Timestamp()
    modified.FromNanoseconds(expected.modified_ns or 0)
    both = files_pb2.ModifiedAndSize(modified=modified, size=expected.size or 0)
    return files_pb2.FileVersion(modified_and_size=both)


def write(
    path: Path,
    content: str | bytes,
    write_mode: types.WriteMode | str,
    mode: int | None,
    expected: types.Version | None,
    *,
    parents: bool,
) -> files_pb2.FileOp:
    """A write."""
    name = f"WRITE_MODE_{types.WriteMode(write_mode).name}"
    op = files_pb2.WriteOp(
        **path_fields(path),
        content=to_bytes(content),
        write_mode=files_pb2.WriteMode.Value(name),
        make_parents=parents,
        mode=mode,
        expected=version(expected),
    )
    return files_pb2.FileOp(write=op)


def edit(
    path: Path, old: str | bytes, new: str | bytes, expected: types.Version | None, *, replace_all: bool
) -> files_pb2.FileOp:
    """An edit."""
    op = files_pb2.EditOp(
        **path_fields(path),
        old_text=to_bytes(old),
        new_text=to_bytes(new),
        replace_all=replace_all,
        expected=version(expected),
    )
    return files_pb2.FileOp(edit=op)


def two_paths(source: Path, target: Path) -> dict[str, Any]:
    """The fields of operations that have two paths."""
    return path_fields(source, "from") | path_fields(target, "to")
