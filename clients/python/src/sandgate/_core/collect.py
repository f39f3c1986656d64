"""Puts a command's events together to what it did."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from . import types

if TYPE_CHECKING:
    from collections.abc import Iterator


class Collector:
    """All that a command wrote up to its end, and its end."""

    def __init__(self, exec_id: str, stdout: bytes = b"", stderr: bytes = b"") -> None:
        self._id = exec_id
        self._chunks = {types.OutputStream.STDOUT: [stdout], types.OutputStream.STDERR: [stderr]}
        self._lost = dict.fromkeys(types.OutputStream, 0)
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder("replace") for stream in types.OutputStream}
        self._exit: types.Exit | None = None
        self._failure: types.StartFailure | None = None

    @property
    def done(self) -> bool:
        """It ended, or could not be started."""
        return self._exit is not None or self._failure is not None

    def take(self, event: types.ExecEvent) -> Iterator[tuple[types.OutputStream, str]]:
        """Takes an event, and gives what is new as text. No character is ever split."""
        match event:
            case types.Output(stream, _, data):
                self._chunks[stream].append(data)
                yield from self._text(stream, data)
            case types.Gap(stream, begin, end):
                self._lost[stream] += end - begin
            case types.Exited(exit):
                self._exit = exit
                for stream in types.OutputStream:
                    yield from self._text(stream, b"", final=True)
            case types.StartFailed(failure):
                self._failure = failure
            case _:
                pass

    def result(self, budget: types.OutputBudget | None = None) -> types.RunResult:
        """What it did."""
        return types.RunResult(
            self._id,
            self._exit,
            self._failure,
            self._output(types.OutputStream.STDOUT, budget),
            self._output(types.OutputStream.STDERR, budget),
        )

    def _text(
        self, stream: types.OutputStream, data: bytes, *, final: bool = False
    ) -> Iterator[tuple[types.OutputStream, str]]:
        text = self._decoders[stream].decode(data, final)
        if text:
            yield stream, text

    def _output(self, stream: types.OutputStream, budget: types.OutputBudget | None) -> types.StreamOutput:
        data = b"".join(self._chunks[stream])
        lost = self._lost[stream]
        if budget is None or len(data) <= budget.head + budget.tail:
            return types.StreamOutput(head=data, omitted_bytes=lost, total_bytes=len(data) + lost)
        head = data[: _cut_behind(data, budget.head)]
        tail = data[_cut_before(data, len(data) - budget.tail) :]
        left_out = data[len(head) : len(data) - len(tail)]
        return types.StreamOutput(head, tail, len(left_out) + lost, left_out.count(b"\n"), len(data) + lost)


def _cut_behind(data: bytes, size: int) -> int:
    """Behind the last line end if it is in the second half, else between two characters. As the runtime does."""
    line = data.rfind(b"\n", size // 2, size) + 1
    return line or _character(data, size, -1)


def _cut_before(data: bytes, begin: int) -> int:
    """Behind the first line end if it is in the first half of the rest, else between two characters."""
    line = data.find(b"\n", begin, begin + (len(data) - begin) // 2) + 1
    return line or _character(data, begin, 1)


def _character(data: bytes, at: int, step: int) -> int:
    """The nearest place in that direction at which a character begins; that very place if it is no UTF-8."""
    for place in range(at, at + 4 * step, step):
        if not 0 < place < len(data) or data[place] & 0xC0 != 0x80:
            return place
    return at
