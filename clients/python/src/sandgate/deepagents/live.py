"""A command's output on LangGraph's stream while it runs, for whoever watches with `stream_mode="custom"`."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from langgraph.config import get_stream_writer

if TYPE_CHECKING:
    from collections.abc import Callable


class Live:
    """Tells of one command, in dictionaries: `type`, `sandbox`, `exec_id`, and what the type has."""

    def __init__(self, write: Callable[[Any], None], sandbox: str, exec_id: str) -> None:
        self._write = write
        self._which = {"sandbox": sandbox, "exec_id": exec_id}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.shown = 0
        """Bytes so far."""

    def started(self, command: str) -> None:
        """It runs."""
        self._write({"type": "sandgate.started", **self._which, "command": command})

    def output(self, data: bytes) -> None:
        """It wrote. No character is split."""
        self.shown += len(data)
        text = self._decoder.decode(data)
        if text:
            self._write({"type": "sandgate.output", **self._which, "text": text})

    def ended(self, exit_code: int | None) -> None:
        """It ended."""
        self._write({"type": "sandgate.ended", **self._which, "exit_code": exit_code})


def listener(sandbox: str, exec_id: str) -> Live | None:
    """Where to tell of a command; `None` outside of a graph.

    There is none without any configuration (`RuntimeError`), in a runnable that is no graph (`KeyError`), and where
    LangGraph's server only makes a graph, with a runtime that has no writer (`AttributeError`).
    """
    try:
        write = get_stream_writer()
    except (AttributeError, KeyError, RuntimeError):
        return None
    return Live(write, sandbox, exec_id)
