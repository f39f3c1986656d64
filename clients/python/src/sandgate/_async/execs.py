"""A command in a sandbox, followed across lost connections and server restarts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .._core import convert, requests, types
from .._core import io_async as io
from .._core.collect import Collector
from .._core.errors import ConnectionLost, SandgateError
from .._core.follow import ExecFollow
from .._core.values import new_id, signal_number, to_bytes
from .._gen.reasons import ExecNotRunning, StdinClosed
from ..v1 import exec_pb2
from ..v1 import sandbox_service_pb2 as service
from .stream import AsyncStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from .transport import AsyncTransport

KILL = 9
CHUNK = 256 << 10


class AsyncExec(AsyncStream[types.ExecEvent]):
    """A command that is followed: an iterator of its events.

    Each byte comes once, in order, or is told as a gap, also when the connection is lost or the server restarted. The
    command itself runs once. `SandboxRestarted` ends it: its processes are gone then.

    To stop following leaves the command alone; `Sandbox.attach_exec` finds it again. Its other methods may be used
    while its events are read elsewhere.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        target: requests.Target,
        info: types.ExecInfo,
        *,
        seen: types.Offsets | None = None,
        writer: str | None = None,
    ) -> None:
        self._state = ExecFollow(target, info.id, seen)
        super().__init__(transport, lambda stub: stub.FollowExec, self._state)
        self._target = target.expecting(info.incarnation)
        self._writer = writer or new_id()
        self._stdin_offset: int | None = info.stdin_offset
        self._stdin_lock = io.Lock()
        self.info = info
        """The command, as it was at first."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} pid {self.info.pid}: {self.info.command}>"

    @property
    def id(self) -> str:
        """Its id."""
        return self.info.id

    @property
    def pid(self) -> int:
        """Its process id in the sandbox; 0 if it could not be started."""
        return self.info.pid

    @property
    def seen(self) -> types.Offsets:
        """How much of each stream was given out: where another follower would go on."""
        return self._state.seen

    @property
    def writer(self) -> str:
        """The name under which it writes stdin. `attach_exec` with it goes on writing."""
        return self._writer

    async def write(self, data: str | bytes) -> None:
        """Writes its stdin. Waits while the command does not read. What is written arrives once.

        Raises `StdinClosed` if the command wants no more: it ended, or closed its stdin.
        """
        content = to_bytes(data)
        async with self._stdin_lock:
            begin = 0
            while begin < len(content):
                begin += await self._write(content[begin : begin + CHUNK], close=False)

    async def close_stdin(self) -> None:
        """Says that no more will come. On a terminal it sends Ctrl-D."""
        async with self._stdin_lock:
            await self._write(b"", close=True)

    async def signal(self, signal: int | str) -> int:
        """Sends a signal, by number or name, to every process of it, and says how many got it.

        Only KILL is sent again when the answer was lost: another one could be taken for a second signal. Raises
        `ExecNotRunning` if no process is left.
        """
        return await send_signal(self._transport, self._target, self.id, signal)

    async def kill(self) -> int:
        """Kills every process of it, and answers when none is left. That none was left before is no error."""
        try:
            return await self.signal(KILL)
        except ExecNotRunning:
            return 0

    async def resize(self, columns: int, rows: int) -> None:
        """Gives its terminal a new size."""
        size = exec_pb2.PtySize(columns=columns, rows=rows)
        request = service.ResizeExecRequest(**self._target.guarded, exec_id=self.id, size=size)
        await self._transport.repeat(lambda stub: stub.ResizeExec, request)

    def detach(self) -> None:
        """Stops following. The command runs on."""
        self.close()

    async def wait(self) -> types.Exit | types.StartFailure:
        """Waits for the program's end, and throws its output away. Output may come after it: read on for that."""
        async for event in self:
            match event:
                case types.Exited(exit):
                    return exit
                case types.StartFailed(failure):
                    return failure
                case _:
                    pass
        raise ConnectionLost("the exec is no longer followed")

    async def output(
        self,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        *,
        budget: types.OutputBudget | None = None,
    ) -> types.RunResult:
        """Waits for the program's end and gives all that it wrote, which must fit into memory, or head and tail of it.

        Stops following then: what it left running may write on. `Sandbox.exec_info` tells of a file for its output.
        """
        collector = Collector(self.id)
        callbacks = {types.OutputStream.STDOUT: on_stdout, types.OutputStream.STDERR: on_stderr}
        async for event in self:
            for stream, text in collector.take(event):
                callback = callbacks[stream]
                if callback is not None:
                    await io.notify(callback, text)
            if collector.done:
                self.close()
                return collector.result(budget)
        raise ConnectionLost("the exec is no longer followed")

    async def _write(self, chunk: bytes, *, close: bool) -> int:
        offset = await self._offset()
        request = requests.write_stdin(self._target, self.id, self._writer, offset, chunk, close=close)
        # What was accepted is not known until an answer comes.
        self._stdin_offset = None
        answer = (await self._transport.repeat(lambda stub: stub.WriteExec, request)).stdin
        self._stdin_offset = answer.offset
        accepted = answer.offset - offset
        if answer.closed and accepted < len(chunk):
            message = f"stdin is closed after {answer.offset} bytes"
            raise StdinClosed(message, metadata={"accepted": str(answer.offset)})
        return accepted

    async def _offset(self) -> int:
        if self._stdin_offset is None:
            request = service.GetExecRequest(**self._target.read, exec_id=self.id)
            answer = await self._transport.repeat(lambda stub: stub.GetExec, request)
            self._stdin_offset = answer.exec.stdin_offset
        return self._stdin_offset


async def send_signal(transport: AsyncTransport, target: requests.Target, exec_id: str, signal: int | str) -> int:
    """SignalExec. Only KILL may be repeated."""
    number = signal_number(signal)
    request = service.SignalExecRequest(**target.guarded, exec_id=exec_id, signal=service.ExecSignal(signal=number))
    send = transport.repeat if number == KILL else transport.once
    return (await send(lambda stub: stub.SignalExec, request)).processes


async def feed(exec: AsyncExec, content: bytes) -> None:
    """Writes all of stdin and closes it. A command that does not want it is none the worse."""
    with contextlib.suppress(StdinClosed):
        await exec.write(content)
        await exec.close_stdin()


async def run_to_end(
    transport: AsyncTransport, target: requests.Target, request: service.RunRequest, *, whole: bool
) -> types.RunResult:
    """Runs a command by `Run`, which answers with a part of its output; if all is wanted, the rest is followed.

    Whatever ends this early kills the command: a cancelled task, Ctrl-C.
    """
    try:
        while True:
            answer = await transport.repeat(lambda stub: stub.Run, request)
            info = convert.exec_info(answer.exec)
            if info.state is not types.ExecState.RUNNING:
                break
            # It ran in this incarnation, and is waited for in no other.
            request.expected_incarnation = info.incarnation
        outputs = convert.stream_output(answer.stdout), convert.stream_output(answer.stderr)
        if whole and any(output.omitted_bytes for output in outputs):
            exec = AsyncExec(transport, target, info, seen=types.Offsets(*(len(output.head) for output in outputs)))
            async with exec:
                collector = Collector(info.id, *(output.head for output in outputs))
                async for event in exec:
                    for _ in collector.take(event):
                        pass
                    if collector.done:
                        return collector.result().with_saved(info)
    except SandgateError:
        raise
    except BaseException:
        await io.shielded(kill_quietly(transport, target, request.exec_id))
        raise
    return types.RunResult(info.id, info.exit, info.start_failure, *outputs).with_saved(info)


async def kill_quietly(transport: AsyncTransport, target: requests.Target, exec_id: str) -> None:
    """Kills a command on the way out, where another error is told."""
    with contextlib.suppress(SandgateError):
        await send_signal(transport, target, exec_id, KILL)
