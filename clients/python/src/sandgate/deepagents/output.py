"""What a command did, as deepagents words it: all of its output, its ends, or a preview."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepagents.backends.protocol import ExecuteOffloadResult, ExecuteResponse

from .._core.values import seconds
from .results import build

if TYPE_CHECKING:
    from .._core import types
    from .._core.values import Span

LINES = 5
BYTES = 2000
PREVIEW = 2 * BYTES
"""What a preview may need of an output's beginning, and of its end."""
TIMED_OUT = 124
"""The exit code that `timeout` of coreutils gives."""

MARKER = "... [{omitted_lines} lines truncated] ..."
EXCERPT_NOTICE = (
    "... [the excerpts above and below are byte-capped, so the lines bordering this marker may be cut mid-line] ..."
)
CLIP_NOTICE = "... [output clipped here; {captured_bytes} bytes total, full output at the path above] ..."
CAPPED_NOTICE = (
    "... [output clipped here; capture stopped at its {captured_bytes}-byte limit, "
    "so the file at the path above is also incomplete] ..."
)


def response(result: types.RunResult, path: str, timeout: Span | None) -> ExecuteResponse:
    """All of its output; or its ends, and where all of it is."""
    stream = result.stdout_output
    output = result.stdout
    if stream.omitted_bytes:
        left_out = f"\n... [{stream.omitted_bytes} bytes left out; {_where(result, path)}] ...\n"
        output = _text(stream.head) + left_out + _text(stream.tail)
    return _response(result, output, timeout, truncated=result.truncated)


def offloaded(result: types.RunResult, path: str, most: int, timeout: Span | None) -> ExecuteOffloadResult:
    """All of its output if that has at most so many bytes; else a preview of the file that has it."""
    stream = result.stdout_output
    if stream.total_bytes <= most or not result.saved_path:
        return build(ExecuteOffloadResult, offloaded=False, response=response(result, path, timeout))
    lines = stream.head.count(b"\n") + stream.omitted_lines + stream.tail.count(b"\n")
    omitted = lines - 2 * LINES
    preview = _ends(stream.join(), omitted) if omitted > 0 else _beginning(result)
    # If the file has it all, nothing was lost, so it is not truncated.
    answer = _response(result, preview, timeout, truncated=bool(result.save_error))
    return build(ExecuteOffloadResult, offloaded=True, response=answer, preview_has_truncation_marker=omitted > 0)


def _where(result: types.RunResult, path: str) -> str:
    if not result.saved_path:
        return f"it could not be saved: {result.save_error}"
    if result.save_error:
        return f"{result.saved_bytes} bytes of the output are at {path}: {result.save_error}"
    return f"the whole output is at {path}"


def _response(result: types.RunResult, output: str, timeout: Span | None, *, truncated: bool) -> ExecuteResponse:
    notes = "".join(f"{note}\n" for note in _notes(result, timeout))
    if notes and output and not output.endswith("\n"):
        output += "\n"
    code = TIMED_OUT if result.timed_out else result.exit_code
    return ExecuteResponse(output=output + notes, exit_code=code, truncated=truncated)


def _notes(result: types.RunResult, timeout: Span | None) -> list[str]:
    """What a model should know and the output does not say."""
    if result.start_failure is not None:
        return [f"Error: {result.start_failure.message}"]
    notes: list[str] = []
    if result.exit is not None and result.exit.out_of_memory:
        notes.append(
            f"[{result.exit.out_of_memory} of its processes were killed, because the sandbox ran out of memory]"
        )
    if result.timed_out and timeout is not None:
        notes.append(
            f"Error: Command timed out after {seconds(timeout):g} seconds. "
            "For long-running commands, re-run using the timeout parameter."
        )
    if result.exit is not None and result.exit.lost:
        notes.append("[The sandbox was stopped while the command ran; how it ended is not known]")
    return notes


def _ends(data: bytes, omitted: int) -> str:
    """The first and the last lines, as far as the bytes go, around a marker."""
    head, tail = _first(data), _last(data)
    cut = f"\n{EXCERPT_NOTICE}\n" if max(len(head), len(tail)) > BYTES else ""
    marker = MARKER.format(omitted_lines=omitted)
    return f"{_text(_first(head[:BYTES]))}{cut}{marker}\n{_text(_last(tail[-BYTES:]))}"


def _beginning(result: types.RunResult) -> str:
    """Of a few long lines."""
    stream = result.stdout_output
    notice, size = (CAPPED_NOTICE, result.saved_bytes) if result.save_error else (CLIP_NOTICE, stream.total_bytes)
    clipped = f"\n{notice.format(captured_bytes=size)}\n" if stream.total_bytes > PREVIEW else ""
    return _text(stream.join()[:PREVIEW]) + clipped


def _first(data: bytes) -> bytes:
    return b"".join(_lines(data)[:LINES])


def _last(data: bytes) -> bytes:
    return b"".join(_lines(data)[-LINES:])


def _lines(data: bytes) -> list[bytes]:
    """By line feeds alone, unlike `splitlines`."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
