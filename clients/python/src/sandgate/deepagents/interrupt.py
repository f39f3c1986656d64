"""Ctrl-C for commands that run in other threads.

LangGraph runs tools in threads unless the graph is asynchronous, and Python raises `KeyboardInterrupt` in the main
thread only, which then waits for the others. So that a command does not go on for its whole timeout, a pipe tells us of
the signal as well, without a handler of our own: asyncio and others want to find Python's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

from .._async.sandbox import AsyncSandbox
from .._core.errors import SandgateError

if TYPE_CHECKING:
    from collections.abc import Generator

    from .._gen.sync.sandbox import Sandbox

_NOBODY = -1
_running: dict[str, Sandbox] = {}
_lock = threading.Lock()
_listening = False


def listen() -> None:
    """Begins to notice Ctrl-C, once. Only the main thread can; where another one listens, it goes on doing so."""
    global _listening  # noqa: PLW0603
    if _listening or threading.current_thread() is not threading.main_thread():
        return
    _listening = True
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    if before != _NOBODY:
        signal.set_wakeup_fd(before)
        os.close(readable)
        os.close(writable)
        return
    os.register_at_fork(after_in_child=_forked)
    threading.Thread(target=_notice, args=(readable,), name="sandgate-interrupt", daemon=True).start()


@contextlib.contextmanager
def noticed(sandbox: Sandbox | AsyncSandbox, exec_id: str) -> Generator[None]:
    """While this lasts Ctrl-C kills the command. In the main thread, and in a task, it does so anyway."""
    if isinstance(sandbox, AsyncSandbox) or threading.current_thread() is threading.main_thread():
        yield
        return
    with _lock:
        _running[exec_id] = sandbox
    try:
        yield
    finally:
        with _lock:
            del _running[exec_id]


def _forked() -> None:
    """The pipe is the parent's: a child's signals are not for it."""
    _running.clear()
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(_NOBODY)


def _notice(readable: int) -> None:
    while True:
        if signal.SIGINT not in os.read(readable, 64):
            continue
        with _lock:
            running = list(_running.items())
        for exec_id, sandbox in running:
            with contextlib.suppress(SandgateError):
                sandbox.signal_exec(exec_id, "KILL")
