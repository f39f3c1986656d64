"""Commands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class ExecState(StrEnum):
    """Where a command is in its life."""

    UNKNOWN = "unknown"
    RUNNING = "running"
    EXITED = "exited"
    START_FAILED = "start_failed"


class StartFailureReason(StrEnum):
    """Why a program could not be started."""

    UNKNOWN = "unknown"
    NOT_FOUND = "not_found"
    NOT_EXECUTABLE = "not_executable"
    BAD_CWD = "bad_cwd"
    TOO_LONG = "too_long"
    BAD_USER = "bad_user"
    NO_RESOURCES = "no_resources"
    BAD_LIMIT = "bad_limit"


class OutputStream(StrEnum):
    """Which of a command's streams. A terminal has only stdout."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Offsets:
    """How many bytes there are, or were seen, of each stream."""

    stdout: int = 0
    stderr: int = 0


@dataclass(frozen=True, slots=True)
class Pty:
    """A terminal to run on."""

    columns: int = 80
    rows: int = 24
    term: str = ""
    """`TERM`; empty: `xterm-256color`."""


@dataclass(frozen=True, slots=True)
class OutputBudget:
    """How much of each stream to give: bytes from its start and from its end, 1 MiB together at most."""

    head: int = 32 << 10
    tail: int = 32 << 10


@dataclass(frozen=True, slots=True)
class SaveOutput:
    """A file in the sandbox that holds the whole output, once that is larger than `after`."""

    path: str
    after: int = 0
    limit: int | None = None
    """The file ends after this many bytes. The command goes on, and `save_error` says that there is more."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a program could not be started."""

    reason: StartFailureReason
    message: str

    @property
    def exit_code(self) -> int:
        """As a shell says it: 127 for not found, else 126."""
        return 127 if self.reason is StartFailureReason.NOT_FOUND else 126


@dataclass(frozen=True, slots=True)
class Exit:
    """How a program ended: with a code, by a signal, or nobody knows."""

    code: int | None = None
    signal: int | None = None
    lost: bool = False
    """The sandbox was stopped or crashed while it ran. It may have ended in any way."""
    timed_out: bool = False
    out_of_memory: int = 0
    """Processes of it that the kernel killed for want of memory."""
    duration: float = 0
    user_time: float = 0
    system_time: float = 0
    max_rss: int = 0
    offsets: Offsets = field(default_factory=Offsets)
    """What it wrote itself is before these."""
    exited_at: datetime | None = None

    @property
    def exit_code(self) -> int | None:
        """The code as a shell says it: 128 and more for a signal. `None` if it is not known."""
        if self.signal is not None:
            return 128 + self.signal
        return self.code

    def __str__(self) -> str:
        if self.lost:
            return "lost"
        how = f"signal {self.signal}" if self.signal is not None else f"exit {self.code}"
        return f"{how} (timed out)" if self.timed_out else how


@dataclass(frozen=True, slots=True)
class ExecInfo:
    """A command, as it was when it was asked for."""

    id: str
    incarnation: str
    state: ExecState
    pid: int
    started_at: datetime | None
    start_failure: StartFailure | None
    exit: Exit | None
    processes_alive: bool
    output_ended: bool
    written: Offsets
    oldest: Offsets
    stdin_offset: int
    stdin_open: bool
    command: str
    saved_path: str | None
    """The file that holds the whole output, if one was asked for and there was enough."""
    save_error: str
    """Why that file is missing or cut short."""
    saved_bytes: int
    """How much of the output was in it."""


@dataclass(frozen=True, slots=True)
class Started:
    """It runs."""

    pid: int
    started_at: datetime | None
    incarnation: str


@dataclass(frozen=True, slots=True)
class StartFailed:
    """It could not be started. Nothing follows."""

    failure: StartFailure


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes that it wrote, at most 64 KiB."""

    stream: OutputStream
    offset: int
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as text. A character that lies in two events is damaged: decode the joined bytes instead."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a stream that are gone. What follows goes on at `end`."""

    stream: OutputStream
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The program ended. All that it wrote itself came before. What it left running may still write."""

    exit: Exit


@dataclass(frozen=True, slots=True)
class Ended:
    """Both streams are at their end, with their sizes. Nothing follows."""

    total: Offsets


ExecEvent = Started | StartFailed | Output | Gap | Exited | Ended
"""What happens to a command, each told once and in order."""


@dataclass(frozen=True, slots=True)
class StreamOutput:
    """What a stream held. Cut in the middle if there was a budget."""

    head: bytes = b""
    tail: bytes = b""
    omitted_bytes: int = 0
    """Bytes between the two that were left out by a budget, or that are gone."""
    omitted_lines: int = 0
    total_bytes: int = 0

    def join(self) -> bytes:
        """What is there of it, without a mark where something is missing."""
        return self.head + self.tail


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """What a command did."""

    id: str
    """Its exec id."""
    exit: Exit | None
    start_failure: StartFailure | None
    stdout_output: StreamOutput
    stderr_output: StreamOutput
    saved_path: str | None = None
    """The file in the sandbox with the whole output, if one was asked for and there was enough."""
    save_error: str = ""
    """Why that file is missing or cut short."""
    saved_bytes: int = 0
    """How much of the output is in it."""

    @property
    def exit_code(self) -> int | None:
        """As a shell says it: 128 and more for a signal, 126 and 127 for what can't be started.

        `None` if the sandbox was stopped or crashed while it ran, so that nobody knows.
        """
        if self.start_failure:
            return self.start_failure.exit_code
        return self.exit.exit_code if self.exit else None

    @property
    def ok(self) -> bool:
        """It ended by itself, with code 0."""
        return self.exit is not None and self.exit.code == 0

    @property
    def timed_out(self) -> bool:
        """Its timeout was reached, and it was killed."""
        return self.exit is not None and self.exit.timed_out

    @property
    def stdout(self) -> str:
        """Its stdout as text; what is not UTF-8 is U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Its stderr, likewise."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def stdout_bytes(self) -> bytes:
        """Its stdout."""
        return self.stdout_output.join()

    @property
    def stderr_bytes(self) -> bytes:
        """Its stderr."""
        return self.stderr_output.join()

    @property
    def truncated(self) -> bool:
        """Some of the output is not here."""
        return bool(self.stdout_output.omitted_bytes or self.stderr_output.omitted_bytes)

    def with_saved(self, info: ExecInfo) -> RunResult:
        """The same, with what is known of its file."""
        return replace(self, saved_path=info.saved_path, save_error=info.save_error, saved_bytes=info.saved_bytes)

    def __repr__(self) -> str:
        how = str(self.exit) if self.exit else self.start_failure.message if self.start_failure else "running"
        return f"<RunResult {how}, stdout {_shown(self.stdout)}, stderr {_shown(self.stderr)}>"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-19:]}")
