# Generated from deepagents/_async/keeper.py by tools/generate.py. Do not edit.
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

    from ..._core.types import SandboxInfo
    from ..._gen.sync.client import Client
    from ..._gen.sync.files import Files
    from ..._gen.sync.sandbox import Sandbox
    from ...deepagents.options import Options

# One handle for each thread that was seen lately. To forget one costs a call when it comes back.
MANY = 1024


class Kept:
    """A sandbox in use."""

    def __init__(self, sandbox: Sandbox, options: Options) -> None:
        self.sandbox = sandbox
        self.places = Places(options.root_dir, options.virtual_mode)
        self._prepared = options.virtual_mode

    @property
    def files(self) -> Files:
        """Its files, as the agent sees them."""
        return self.sandbox.files.view(self.places.root_dir) if self.places.virtual else self.sandbox.files

    def inward(self, path: str) -> str:
        """A path for a file call. Where the middleware's directories are is found out with the first of theirs."""
        try:
            path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise PathInvalid("the path is not valid Unicode", reason="PATH_INVALID") from None
        if places.is_artefact(path):
            self.prepare()
        return self.places.inward(path)

    def prepare(self) -> None:
        """Makes the directories that the middleware writes to, or finds another place for them."""
        if self._prepared:
            return
        made = [
            files_pb2.FileOp(mkdir=files_pb2.MkdirOp(path=path, parents=True, mode=0o1777)) for path in places.ARTEFACTS
        ]
        try:
            for result in self.sandbox.files.view(user=places.ROOT).batch(made):
                error = convert.op_error(result)
                if error is not None:
                    raise error
        except (FileIo, FileNotDirectory, FilePermissionDenied, UserNotFound, UserNotPermitted):
            here = self.sandbox.files.stat(".")
            self.places = Places(self.places.root_dir, moved_to=f"{here.path.rstrip('/')}/{places.MOVED}")
        self._prepared = True


class Keeper:
    """Gives out sandboxes, and notices those that are gone."""

    def __init__(
        self,
        client: Client,
        name: Callable[[], str],
        options: Options,
        doomed: dict[str, SandboxInfo],
        held: Sandbox | None,
    ) -> None:
        self._client = client
        self._name = name
        self._options = options
        # Those to delete in the end. Both halves know of them, because either may have made one.
        self._doomed = doomed
        self._held = Kept(held, options) if held is not None else None
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def use(self) -> Use:
        """An `with` for one call."""
        return Use(self, self._name())

    def find(self, name: str) -> Kept:
        """The sandbox of that name, which is made if there is none."""
        if self._held is not None:
            return self._held
        kept = self._kept.get(name)
        if kept is None:
            options = self._options
            sandbox = self._client.create(
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
            kept = self._kept[name] = Kept(sandbox, options)
            while len(self._kept) > MANY:
                self._kept.popitem(last=False)
        return kept

    def forget(self, name: str) -> None:
        """It is gone. The call that found out says so; the next one makes another."""
        self._kept.pop(name, None)

    def delete(self) -> None:
        """Removes those that are ephemeral."""
        if self._held is not None and self._options.ephemeral:
            self._held.sandbox.delete()
        while self._doomed:
            name, info = self._doomed.popitem()
            sandbox = self._client.sandbox(name)
            sandbox.info = info
            sandbox.delete()
        self._kept.clear()


class Use:
    """One call's sandbox."""

    def __init__(self, keeper: Keeper, name: str) -> None:
        self._keeper = keeper
        self._name = name

    def __enter__(self) -> Kept:
        return self._keeper.find(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SandboxNotFound):
            self._keeper.forget(self._name)
