"""The backend: every method of deepagents, synchronous and asynchronous, and no logic that both would need."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Self

from deepagents.backends.protocol import GlobResult, GrepResult
from deepagents.backends.sandbox import BaseSandbox

from .._core.errors import ConfigError
from .._gen.deepagents.commands import Commands
from .._gen.deepagents.file_tools import FileTools
from .._gen.deepagents.keeper import Keeper
from .._gen.deepagents.transfers import Transfers
from .._gen.sync.client import Client
from . import interrupt, twins
from ._async.commands import AsyncCommands
from ._async.file_tools import AsyncFileTools
from ._async.keeper import AsyncKeeper
from ._async.transfers import AsyncTransfers
from .names import PREFIX, running_thread, thread_name
from .options import MOST_OUTPUT, MOST_SAVED, Options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from deepagents.backends.protocol import (
        DeleteResult,
        EditResult,
        ExecuteOffloadResult,
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
        LsResult,
        ReadResult,
        WriteResult,
    )

    from .._async.client import AsyncClient
    from .._async.sandbox import AsyncSandbox
    from .._core.types import SandboxInfo, Volume
    from .._core.values import Span
    from .._gen.sync.sandbox import Sandbox

# As long as deepagents waits for those of a `BaseSandbox`.
GREP_SECONDS = 35
GLOB_SECONDS = 30
TOO_LONG = "Error: {what} timed out after {seconds}s. Try a more specific pattern or a narrower path."


class SandgateBackend(BaseSandbox):
    """A sandbox as the backend of a deep agent.

    `SandgateBackend(sandbox)` uses one that you hold, of either kind. Without it, one is found or made by `name` on
    first use, and with `for_thread` one for each conversation. All methods are there twice, and the asynchronous ones
    use no threads.

    What an agent can do something about is answered as text: a file that is missing, a pattern that is wrong, a command
    that fails, takes too long (exit code 124) or can't be started. Everything else is raised, as a `SandgateError`: no
    server, no sandbox, a sandbox that restarted while a command ran.
    """

    enable_capture_offload: bool = True
    """Large output goes to a file in the sandbox. The runtime writes it: nothing is asked of the image."""
    grep_exclude_dirs: tuple[str, ...] = (".git",)
    """Names that `grep` skips at any depth."""

    def __init__(
        self,
        sandbox: Sandbox | AsyncSandbox | None = None,
        *,
        client: Client | AsyncClient | None = None,
        name: str | Callable[[], str] | None = None,
        template: str | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        ttl: Span | None = None,
        idle: Span | None = None,
        warm_pool: str | None = None,
        connection: str | None = None,
        volumes: Sequence[Volume] = (),
        ephemeral: bool | None = None,
        root_dir: str | None = None,
        virtual_mode: bool = False,
        timeout: Span | None = 30 * 60,
        max_output_bytes: int = MOST_OUTPUT,
        max_saved_bytes: int = MOST_SAVED,
        stream: bool = True,
    ) -> None:
        """Makes no call.

        Args:
            sandbox: The one to use. Then there is nothing to find or to make.
            client: The server, of either kind; by default the one that the environment says.
            name: The sandbox to find or make, or a function that says it for each call. Without one a new sandbox is
                made for this backend alone.
            template: What it is made from. So with `labels`, `env`, `ttl` and `idle`, see `Client.create`.
            labels: To find it by.
            env: For every command.
            ttl: How long it lives.
            idle: How long it may idle.
            warm_pool: On Kubernetes, the pool to take it from.
            connection: On Kubernetes, the way to reach it.
            volumes: On Kubernetes, those to make for it.
            ephemeral: `close` deletes it. By default only what has no name.
            root_dir: The directory that commands and relative paths begin in.
            virtual_mode: `root_dir` is `/` to the file tools, and nothing outside of it exists. Commands see all.
            timeout: For commands that say none; `None` for no end.
            max_output_bytes: How much of a command's output is answered, its ends if there is more.
            max_saved_bytes: How much of it is kept in a file then.
            stream: Show output on LangGraph's stream as it comes.

        """
        if sandbox is not None and (client is not None or name is not None):
            raise ValueError("a sandbox that you hold needs neither client nor name")
        options = Options(
            template=template,
            labels=labels,
            env=env,
            ttl=ttl,
            idle=idle,
            warm_pool=warm_pool,
            connection=connection,
            volumes=volumes,
            ephemeral=(sandbox is None and name is None) if ephemeral is None else ephemeral,
            root_dir=root_dir,
            virtual_mode=virtual_mode,
            timeout=timeout,
            max_output_bytes=max_output_bytes,
            max_saved_bytes=max_saved_bytes,
            stream=stream,
        )
        self._given = client
        if sandbox is not None:
            self._name = _always(sandbox.name)
            self._client, self._aclient, held, aheld = twins.sandboxes(sandbox)
        else:
            self._name = name if callable(name) else _always(name or f"deepagents-{secrets.token_hex(8)}")
            self._client, self._aclient = twins.clients(Client() if client is None else client)
            held, aheld = None, None
        doomed: dict[str, SandboxInfo] = {}
        keeper = Keeper(self._client, self._name, options, doomed, held)
        akeeper = AsyncKeeper(self._aclient, self._name, options, doomed, aheld)
        self._keeper, self._akeeper = keeper, akeeper
        self._files, self._afiles = FileTools(keeper), AsyncFileTools(akeeper)
        self._transfers, self._atransfers = Transfers(keeper), AsyncTransfers(akeeper)
        self._commands, self._acommands = Commands(keeper, options), AsyncCommands(akeeper, options)
        interrupt.listen()

    @classmethod
    def for_thread(cls, thread_id: str | None = None, *, prefix: str = PREFIX, **options: Any) -> Self:
        """A sandbox for each conversation, found again on its next turn and by the next process.

        Without an id it is the thread of the graph that runs, so that one backend serves all of them. The options are
        those of the constructor; `ttl` and `idle` say when a sandbox ends, else its template does.
        """
        if {"sandbox", "name"} & options.keys():
            raise TypeError("the thread names the sandbox")
        thread_name("", prefix)  # Says now what is wrong with it.
        return cls(name=lambda: thread_name(running_thread() if thread_id is None else thread_id, prefix), **options)

    # --- itself ---

    @property
    def id(self) -> str:
        """The sandbox's name. For the thread of the running graph it is only known while one runs."""
        try:
            return self._name()
        except ConfigError:
            return "thread-unknown"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def sandbox(self) -> Sandbox:
        """The sandbox itself, which is found or made: to seed it before a run, or to fetch what a run left."""
        with self._keeper.use() as kept:
            return kept.sandbox

    async def asandbox(self) -> AsyncSandbox:
        """The same."""
        async with self._akeeper.use() as kept:
            return kept.sandbox

    def close(self) -> None:
        """Lets go of the sandbox, and deletes it if it is ephemeral."""
        self._keeper.delete()
        if self._client is not self._given:
            self._client.close()

    async def aclose(self) -> None:
        """The same."""
        await self._akeeper.delete()
        if self._aclient is not self._given:
            await self._aclient.close()
        if self._client is not self._given:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- commands ---

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a shell command to its end; its output is that of stdout and stderr, in order.

        Of more than `max_output_bytes` the middle is left out, and all of it is in a file that the answer names, up to
        `max_saved_bytes`. After the timeout, 0 for none, the exit code is 124 and the output is what there is. A
        cancelled run and Ctrl-C kill the command, and not the sandbox.
        """
        return self._commands.execute(command, timeout)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """The same."""
        return await self._acommands.execute(command, timeout)

    def execute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        """The same; output of more than `max_inline_bytes` is in a file, and the answer is a preview of it.

        The file ends after `max_capture_bytes`, or `max_saved_bytes` of the backend; `truncated` is true then.
        """
        return self._commands.offload(command, capture_path, max_inline_bytes, max_capture_bytes, timeout)

    async def aexecute_with_offload(
        self,
        command: str,
        capture_path: str,
        *,
        max_inline_bytes: int,
        max_capture_bytes: int | None = None,
        timeout: int | None = None,
    ) -> ExecuteOffloadResult:
        """The same."""
        return await self._acommands.offload(command, capture_path, max_inline_bytes, max_capture_bytes, timeout)

    # --- files ---

    def ls(self, path: str) -> LsResult:
        """Entries of a directory, sorted."""
        return self._files.ls(path)

    async def als(self, path: str) -> LsResult:
        """The same."""
        return await self._afiles.ls(path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """A window of a text's lines; another file as base64."""
        return self._files.read(file_path, offset, limit)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """The same."""
        return await self._afiles.read(file_path, offset, limit)

    def write(self, file_path: str, content: str) -> WriteResult:
        """Makes or replaces a file."""
        return self._files.write(file_path, content)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """The same."""
        return await self._afiles.write(file_path, content)

    def edit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002
    ) -> EditResult:
        """Replaces an exact text, once or everywhere."""
        return self._files.edit(file_path, old_string, new_string, replace_all=replace_all)

    async def aedit(
        self,
        file_path: str,
        old_string: str,
        new_string: str,
        replace_all: bool = False,  # noqa: FBT001, FBT002
    ) -> EditResult:
        """The same."""
        return await self._afiles.edit(file_path, old_string, new_string, replace_all=replace_all)

    def delete(self, file_path: str) -> DeleteResult:
        """Removes a file, or a directory with all that is in it."""
        return self._files.delete(file_path)

    async def adelete(self, file_path: str) -> DeleteResult:
        """The same."""
        return await self._afiles.delete(file_path)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Regular files by pattern, from the working directory unless a path is given."""
        return self._files.glob(pattern, path)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """The same, for as long as deepagents waits."""
        limit = asyncio.timeout(GLOB_SECONDS)
        try:
            async with limit:
                return await self._afiles.glob(pattern, path)
        except TimeoutError:
            # The client's patience ends with one, too.
            if not limit.expired():
                raise
            return GlobResult(error=TOO_LONG.format(what="glob", seconds=GLOB_SECONDS))

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Lines that have a plain text, from the working directory unless a path is given."""
        return self._files.grep(pattern, path, glob, max_count, self.grep_exclude_dirs)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """The same, for as long as deepagents waits."""
        limit = asyncio.timeout(GREP_SECONDS)
        try:
            async with limit:
                return await self._afiles.grep(pattern, path, glob, max_count, self.grep_exclude_dirs)
        except TimeoutError:
            if not limit.expired():
                raise
            return GrepResult(error=TOO_LONG.format(what="grep", seconds=GREP_SECONDS))

    # --- many files ---

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Makes or replaces files. Each succeeds or fails on its own."""
        return self._transfers.upload(files)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """The same."""
        return await self._atransfers.upload(files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """The content of files. Each succeeds or fails on its own."""
        return self._transfers.download(paths)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """The same."""
        return await self._atransfers.download(paths)


def _always(name: str) -> Callable[[], str]:
    return lambda: name
