"""A sandbox: its life, its commands, its files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Self, overload

from .._core import convert, requests, types
from .._core import io_async as io
from .._core import local_files as local
from .._core.errors import CommandFailed, SandgateError
from .._core.requests import UNSET, Unset
from .._core.values import new_id, seconds, to_bytes, to_duration
from .._gen.reasons import SandboxFailed
from ..v1 import sandbox_service_pb2 as service
from . import transfer
from .execs import AsyncExec, feed, kill_quietly, run_to_end, send_signal
from .files import AsyncFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from types import TracebackType

    from .._core.values import Command, Path, Span
    from .transport import AsyncTransport

ALL_OUTPUT = types.OutputBudget(head=1 << 20, tail=0)


class AsyncSandbox:
    """A place to run code. Made by `AsyncClient.create`, found by `AsyncClient.attach`.

    In an `async with` it is deleted at the end, unless `keep` is true. Calls that may be repeated after a lost answer
    are, for as long as the client's patience lasts; nothing runs twice.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        target: requests.Target,
        info: types.SandboxInfo | None = None,
        *,
        keep: bool = True,
        created: bool = False,
        resumed: bool = False,
    ) -> None:
        self._transport = transport
        self._target = target
        self.info = info
        """The sandbox, as it was when a method here was last told. `refresh` asks again."""
        self.keep = keep
        """Whether it stays when an `async with` ends."""
        self.created = created
        """The call that gave this made it. Otherwise it was there."""
        self.resumed = resumed
        """The call that gave this resumed it."""
        self.files = AsyncFiles(transport, target)
        """Its files."""

    # --- itself ---

    @property
    def name(self) -> str:
        """Its name."""
        return self._target.name

    @property
    def incarnation(self) -> str:
        """The start of what runs inside, as last told. Each ends every process of the one before."""
        return self.info.incarnation if self.info else ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info.summary() if self.info else repr(self.name)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.keep:
            return
        try:
            await io.shielded(self.delete())
        except SandgateError:
            # What went wrong in the block says more.
            if error is None:
                raise

    def expecting(self, incarnation: str | None = None) -> AsyncSandbox:
        """The same sandbox, in that incarnation alone, or the one last told.

        Calls that start or change something are refused with `SandboxRestarted` in any other.
        """
        target = self._target.expecting(self.incarnation if incarnation is None else incarnation)
        return AsyncSandbox(self._transport, target, self.info)

    async def refresh(self) -> types.SandboxInfo:
        """The sandbox as it is now, with what it uses. Does not count as activity."""
        answer = await self._transport.repeat(lambda stub: stub.Get, service.GetRequest(sandbox=self.name))
        return self._told(answer.sandbox)

    async def wait_ready(self, timeout: Span | None = None) -> types.SandboxInfo:
        """Waits until it takes calls, and resumes it if it is suspended.

        When the timeout is over it is given as it is. Raises `SandboxFailed` if it never will be ready.
        """
        waiting = Waiting(timeout)
        while True:
            request = service.AttachRequest(sandbox=self.name, max_wait=to_duration(waiting.next_call()))
            answer = await self._transport.repeat(lambda stub: stub.Attach, request)
            info = self._told(answer.sandbox)
            if waiting.over(info):
                return info

    async def suspend(self, grace: Span | None = None) -> types.SandboxInfo:
        """Ends every process and keeps the disk. They have `grace` between TERM and KILL, 5 s unless given."""
        request = service.SuspendRequest(**self._target.guarded, grace=to_duration(grace))
        return self._told((await self._transport.repeat(lambda stub: stub.Suspend, request)).sandbox)

    async def resume(self) -> types.SandboxInfo:
        """Brings it back, with a new incarnation. That it runs already is no error."""
        request = service.ResumeRequest(sandbox=self.name)
        info = self._told((await self._transport.repeat(lambda stub: stub.Resume, request)).sandbox)
        return info if info.ready else await self.wait_ready()

    async def delete(self, grace: Span | None = None) -> types.DeleteResult:
        """Ends every process and removes it with its disk. That there is none is no error.

        A later sandbox of the same name is spared.
        """
        uid = self.info.uid if self.info else ""
        request = service.DeleteRequest(sandbox=self.name, expected_uid=uid, grace=to_duration(grace))
        return convert.deleted(await self._transport.repeat(lambda stub: stub.Delete, request))

    async def update(
        self,
        *,
        ttl: Span | Unset = UNSET,
        deadline: datetime | Unset | None = UNSET,
        idle: Span | Unset | None = UNSET,
        labels: Mapping[str, str] | Unset = UNSET,
        etag: str = "",
    ) -> types.SandboxInfo:
        """Changes what is given: its end (`ttl` from now, or a `deadline`), its idle limit, all its labels.

        `None` means none, where the server allows it. With an etag it is refused with `EtagMismatch` if somebody else
        was first.
        """
        request = requests.update(self._target, ttl, deadline, idle, labels, etag)
        # With an etag a repeat could be refused for what the first did.
        send = self._transport.once if etag else self._transport.repeat
        return self._told((await send(lambda stub: stub.Update, request)).sandbox)

    # --- commands ---

    async def run(
        self,
        command: Command,
        *,
        timeout: Span | None = None,
        check: bool = False,
        input: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        clear_env: bool = False,
        cwd: Path | None = None,
        user: str | None = None,
        merge_stderr: bool = False,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        budget: types.OutputBudget | None = None,
        save_output: types.SaveOutput | None = None,
        kill_grace: Span | None = None,
        id: str | None = None,
    ) -> types.RunResult:
        """Runs a command to its end and gives what it did.

        A `str` is a script for `/bin/sh -c`; a sequence is a program and its arguments. A code other than 0, or a
        program that can't be started, is a result like any other; with `check` it raises `CommandFailed`.

        After `timeout` its whole process tree is ended, by TERM and, after `kill_grace` (5 s), KILL; the result has
        `timed_out` and the output so far. A background process that it leaves behind does not hold the answer up.

        `on_stdout` and `on_stderr` are called with text as it comes, in this task. Without a `budget` all output is
        given, and must fit into memory; with one, its head and tail. `save_output` also has it written to a file in the
        sandbox.

        A cancelled task, Ctrl-C, or an error in a callback kills the command, and not the sandbox. With the `id` of an
        earlier run of the same command, that one is found and not run again.
        """
        live = on_stdout is not None or on_stderr is not None or input is not None
        spec = requests.spec(
            command,
            env=env,
            clear_env=clear_env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            kill_grace=kill_grace,
            stdin=input is not None,
            merge_stderr=merge_stderr,
            hold=live,
            save_output=save_output,
        )
        exec_id = id or new_id()
        if live:
            result = await self._run_live(exec_id, spec, input, on_stdout, on_stderr, budget)
        else:
            request = requests.run(self._target, exec_id, spec, budget or ALL_OUTPUT, self._transport.patience)
            result = await run_to_end(self._transport, self._target, request, whole=budget is None)
        if check and not result.ok:
            raise CommandFailed(requests.failure_text(command, result), result=result)
        return result

    async def exec(
        self,
        command: Command,
        *,
        timeout: Span | None = None,
        stdin: bool = False,
        env: Mapping[str, str] | None = None,
        clear_env: bool = False,
        cwd: Path | None = None,
        user: str | None = None,
        merge_stderr: bool = False,
        pty: types.Pty | None = None,
        hold: bool = True,
        save_output: types.SaveOutput | None = None,
        kill_grace: Span | None = None,
        id: str | None = None,
    ) -> AsyncExec:
        """Starts a command and follows it: an iterator of its events.

        With `stdin`, or on a terminal (`pty`), it can be written to; otherwise stdin is at its end. With `hold` a
        command that writes more than is retained (64 MiB) waits for a follower that is slow; else its oldest output is
        dropped and told as a `Gap`. The other arguments are those of `run`.
        """
        spec = requests.spec(
            command,
            env=env,
            clear_env=clear_env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            kill_grace=kill_grace,
            stdin=stdin,
            merge_stderr=merge_stderr,
            pty=pty,
            hold=hold,
            save_output=save_output,
        )
        return await self._start(id or new_id(), spec)

    async def attach_exec(self, id: str, *, seen: types.Offsets | None = None, writer: str | None = None) -> AsyncExec:
        """Follows a command that was started before, behind the bytes that were seen. Never starts one.

        With the name of the `writer` that began stdin it can be written on. Commands of earlier incarnations can be
        followed too: a restart of the sandbox is told by the events, gaps and an exit that is `lost`.
        """
        info = await self.exec_info(id)
        return AsyncExec(self._transport, self._target, info, seen=seen, writer=writer)

    async def exec_info(self, id: str) -> types.ExecInfo:
        """A command as it is now."""
        request = service.GetExecRequest(**self._target.read, exec_id=id)
        return convert.exec_info((await self._transport.repeat(lambda stub: stub.GetExec, request)).exec)

    async def execs(self, *, only_alive: bool = False) -> list[types.ExecInfo]:
        """All commands whose records are kept, oldest first; or only those of which a process is alive."""
        request = service.ListExecsRequest(**self._target.read, only_alive=only_alive)
        found: list[types.ExecInfo] = []
        while True:
            page = await self._transport.repeat(lambda stub: stub.ListExecs, request)
            found.extend(convert.exec_info(info) for info in page.execs)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def signal_exec(self, id: str, signal: int | str) -> int:
        """Sends a signal, by number or name, to every process of a command, and says how many got it."""
        return await send_signal(self._transport, self._target, id, signal)

    # --- files in and out ---

    async def upload(
        self,
        source: local.Source,
        path: Path,
        *,
        mode: int | None = None,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> types.TransferResult:
        """Sends a file to exactly that path, or what is in a directory into one, which is made if it is missing.

        The source is `bytes`, a path of this machine (also as `str`), or an open binary file. A file appears whole or
        not at all, and a lost connection loses nothing of it. A directory goes as a tar, once: after a lost connection
        a part of it is there. `progress` is called with the bytes sent and, if it is known, their number.
        """
        if isinstance(source, (str, os.PathLike)) and local.Path(source).is_dir():
            return await transfer.upload_tree(
                self._transport, self._target, requests.View(), local.Path(source), path, progress=progress
            )
        info = await transfer.upload_file(
            self._transport, self._target, requests.View(), source, path, mode=mode, progress=progress
        )
        return types.TransferResult(1, info.size)

    async def upload_tar(
        self, tar: BinaryIO, directory: Path, *, progress: Callable[[int, int | None], object] | None = None
    ) -> types.TransferResult:
        """Unpacks an uncompressed tar, from an open file, in a directory of the sandbox."""
        return await transfer.upload_tree(
            self._transport, self._target, requests.View(), tar, directory, progress=progress
        )

    @overload
    async def download(
        self, path: Path, target: None = None, *, progress: Callable[[int, int | None], object] | None = None
    ) -> bytes: ...

    @overload
    async def download(
        self,
        path: Path,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> types.TransferResult: ...

    async def download(
        self,
        path: Path,
        target: str | os.PathLike[str] | BinaryIO | None = None,
        *,
        progress: Callable[[int, int | None], object] | None = None,
    ) -> bytes | types.TransferResult:
        """Takes a file out of the sandbox: as `bytes`, into an open binary file, or to exactly that local path.

        What is in a directory goes into one of this machine, which is made if it is missing. A file appears whole or
        not at all, is checked by its SHA-256, and a lost connection loses nothing of it. Nothing is written outside of
        the target, whatever the sandbox sends; what can't be taken over raises `TransferFailed`, and the rest is there.
        """
        where = (self._transport, self._target, requests.View(), path)
        if target is None:
            return await transfer.download_bytes(*where, progress)
        if isinstance(target, (str, os.PathLike)):
            return await transfer.download_path(*where, target, progress)
        state = await transfer.download_to(*where, target, progress)
        transfer.must_be_file(state)
        return types.TransferResult(1, state.received)

    async def download_tar(self, path: Path, target: BinaryIO) -> types.TransferResult:
        """A file or tree as a tar, into an open file. Names in it are paths in the sandbox without the leading `/`."""
        return await transfer.download_tar_to(self._transport, self._target, requests.View(), path, target)

    # --- how ---

    def _told(self, message: object) -> types.SandboxInfo:
        self.info = convert.sandbox(message)  # pyright: ignore[reportArgumentType]
        return self.info

    async def _start(self, exec_id: str, spec: requests.exec_pb2.ExecSpec) -> AsyncExec:
        request = service.StartExecRequest(**self._target.fields, exec_id=exec_id, spec=spec)
        answer = await self._transport.repeat(lambda stub: stub.StartExec, request)
        info = convert.exec_info(answer.exec)
        # It runs in this incarnation, and is followed in no other.
        return AsyncExec(self._transport, requests.Target(self.name, info.incarnation), info)

    async def _run_live(
        self,
        exec_id: str,
        spec: requests.exec_pb2.ExecSpec,
        input: str | bytes | None,
        on_stdout: Callable[[str], object] | None,
        on_stderr: Callable[[str], object] | None,
        budget: types.OutputBudget | None,
    ) -> types.RunResult:
        feeding: io.Background | None = None
        try:
            exec = await self._start(exec_id, spec)
            if input is not None and exec.info.start_failure is None:
                feeding = io.Background(feed, exec, to_bytes(input))
            async with exec:
                result = await exec.output(on_stdout, on_stderr, budget=budget)
            if spec.HasField("save_output") and result.exit is not None:
                result = result.with_saved(await self._saved(exec.info, spec, result.exit))
        except SandgateError:
            raise
        except BaseException:
            await io.shielded(kill_quietly(self._transport, self._target, exec_id))
            raise
        else:
            return result
        finally:
            if feeding is not None:
                feeding.abandon()

    async def _saved(self, info: types.ExecInfo, spec: requests.exec_pb2.ExecSpec, exit: types.Exit) -> types.ExecInfo:
        """A command that ended, when its output is in its file."""
        if spec.stdin != requests.exec_pb2.STDIN_MODE_OPEN:
            target = self._target.expecting(info.incarnation)
            request = requests.run(target, info.id, spec, types.OutputBudget(1, 0), self._transport.patience)
            return convert.exec_info((await self._transport.repeat(lambda stub: stub.Run, request)).exec)
        # `Run` is not for commands with stdin. The file is named when it is begun, which is soon.
        enough = exit.offsets.stdout + exit.offsets.stderr > spec.save_output.after_bytes
        wait = requests.Countdown(5)
        while True:
            info = await self.exec_info(info.id)
            if not enough or info.saved_path or info.save_error or wait.left() <= 0:
                return info
            await io.sleep(0.02)


class Waiting:
    """How long to wait for a sandbox, in calls that load balancers do not cut."""

    def __init__(self, timeout: Span | None) -> None:
        self._left = None if timeout is None else requests.Countdown(seconds(timeout))

    def next_call(self) -> float:
        """How long the next call waits."""
        return requests.ONE_CALL if self._left is None else min(self._left.left(), requests.ONE_CALL)

    def left(self) -> float | None:
        """What is left of it; `None`: no end."""
        return None if self._left is None else self._left.left()

    def over(self, info: types.SandboxInfo) -> bool:
        """Whether there is nothing left to wait for."""
        if info.state is types.SandboxState.FAILED:
            raise SandboxFailed(f"sandbox {info.name!r} can't become ready: {info.state_message}")
        return info.ready or (self._left is not None and self._left.left() <= 0)
