"""Which sandbox a call is for: the one that is held, or one that is found or made by its name."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ..._core import convert
from ..._gen.reasons import (
    FileIo,
    FileNotDirectory,
    FilePermissionDenied,
    PathInvalid,
    SandboxNotFound,
    UserNotFound,
    UserNotPermitted,
)
from ...deepagents import places
from ...deepagents.places import Places
from ...v1 import files_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..._async.client import AsyncClient
    from ..._async.files import AsyncFiles
    from ..._async.sandbox import AsyncSandbox
    from ..._core.types import SandboxInfo
    from ...deepagents.options import Options

# One handle for each thread that was seen lately. To forget one costs a call when it comes back.
MANY = 1024


class AsyncKept:
    """A sandbox in use."""

    def __init__(self, sandbox: AsyncSandbox, options: Options) -> None:
        self.sandbox = sandbox
        self.places = Places(options.root_dir, options.virtual_mode)
        self._prepared = options.virtual_mode

    @property
    def files(self) -> AsyncFiles:
        """Its files, as the agent sees them."""
        return self.sandbox.files.view(self.places.root_dir) if self.places.virtual else self.sandbox.files

    async def inward(self, path: str) -> str:
        """A path for a file call. Where the middleware's directories are is found out with the first of theirs."""
        try:
            path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise PathInvalid("the path is not valid Unicode", reason="PATH_INVALID") from None
        if places.is_artefact(path):
            await self.prepare()
        return self.places.inward(path)

    async def prepare(self) -> None:
        """Makes the directories that the middleware writes to, or finds another place for them."""
        if self._prepared:
            return
        made = [
            files_pb2.FileOp(mkdir=files_pb2.MkdirOp(path=path, parents=True, mode=0o1777)) for path in places.ARTEFACTS
        ]
        try:
            for result in await self.sandbox.files.view(user=places.ROOT).batch(made):
                error = convert.op_error(result)
                if error is not None:
                    raise error
        except (FileIo, FileNotDirectory, FilePermissionDenied, UserNotFound, UserNotPermitted):
            here = await self.sandbox.files.stat(".")
            self.places = Places(self.places.root_dir, moved_to=f"{here.path.rstrip('/')}/{places.MOVED}")
        self._prepared = True


class AsyncKeeper:
    """Gives out sandboxes, and notices those that are gone."""

    def __init__(
        self,
        client: AsyncClient,
        name: Callable[[], str],
        options: Options,
        doomed: dict[str, SandboxInfo],
        held: AsyncSandbox | None,
    ) -> None:
        self._client = client
        self._name = name
        self._options = options
        # Those to delete in the end. Both halves know of them, because either may have made one.
        self._doomed = doomed
        self._held = AsyncKept(held, options) if held is not None else None
        self._kept: OrderedDict[str, AsyncKept] = OrderedDict()

    def use(self) -> AsyncUse:
        """An `async with` for one call."""
        return AsyncUse(self, self._name())

    async def find(self, name: str) -> AsyncKept:
        """The sandbox of that name, which is made if there is none."""
        if self._held is not None:
            return self._held
        kept = self._kept.get(name)
        if kept is None:
            options = self._options
            sandbox = await self._client.create(
                name,
                template=options.template,
                labels=options.labels,
                env=options.env,
                ttl=options.ttl,
                idle=options.idle,
                warm_pool=options.warm_pool,
                connection=options.connection,
                volumes=options.volumes,
                keep=True,
                auto_resume=True,
            )
            if options.ephemeral and sandbox.info is not None:
                self._doomed[name] = sandbox.info
            kept = self._kept[name] = AsyncKept(sandbox, options)
            while len(self._kept) > MANY:
                self._kept.popitem(last=False)
        return kept

    def forget(self, name: str) -> None:
        """It is gone. The call that found out says so; the next one makes another."""
        self._kept.pop(name, None)

    async def delete(self) -> None:
        """Removes those that are ephemeral."""
        if self._held is not None and self._options.ephemeral:
            await self._held.sandbox.delete()
        while self._doomed:
            name, info = self._doomed.popitem()
            sandbox = self._client.sandbox(name)
            sandbox.info = info
            await sandbox.delete()
        self._kept.clear()


class AsyncUse:
    """One call's sandbox."""

    def __init__(self, keeper: AsyncKeeper, name: str) -> None:
        self._keeper = keeper
        self._name = name

    async def __aenter__(self) -> AsyncKept:
        return await self._keeper.find(self._name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SandboxNotFound):
            self._keeper.forget(self._name)
