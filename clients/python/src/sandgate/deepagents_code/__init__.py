"""`dcode --sandbox sandgate`: a provider of sandboxes for deepagents-code, which finds it by its entry point.

dcode makes a provider without arguments, often and only to read its metadata, so nothing here costs more than a look at
the environment; `sandboxes` has what works, and is imported when there is work. The environment says what to do:
`SANDGATE_ADDR` and `SANDGATE_TOKEN` as for `sandgate.Client`, and `SANDGATE_DCODE_TEMPLATE`, `SANDGATE_DCODE_IDLE` and
`SANDGATE_DCODE_TTL` for sandboxes that are made.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from deepagents_code.integrations.sandbox_provider import (  # pyright: ignore[reportMissingModuleSource]
    SandboxInstallHint,
    SandboxProvider,
    SandboxProviderMetadata,
)

from ._calls import off_loop
from ._wishes import Wishes

if TYPE_CHECKING:
    from ..deepagents import SandgateBackend
    from .sandboxes import Sandboxes

METADATA = SandboxProviderMetadata(
    name="sandgate",
    working_dir="/workspace",
    install=SandboxInstallHint(kind="package", name="sandgate[deepagents]"),
    supports_sandbox_id=True,
    supports_snapshot_name=False,
    backend_module="sandgate.deepagents",
)


class SandgateProvider(SandboxProvider):
    """Finds sandboxes by their names, and makes and removes those that dcode has for itself."""

    def __init__(self) -> None:
        self._used: Sandboxes | None = None

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """What dcode asks before it starts anything."""
        return METADATA

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> SandgateBackend:
        """The sandbox of that name, resumed if it is suspended; without a name a new one.

        A name that nothing has is an error: to make it would turn a slip of the pen into an empty sandbox. What is new
        goes when dcode does. `template`, `idle` and `ttl` come before the environment.
        """
        wishes = Wishes.read(os.environ, kwargs)
        if sandbox_id is None:
            return off_loop(lambda: self._sandboxes().make(wishes))
        return off_loop(lambda: self._sandboxes().find(sandbox_id))

    def delete(self, *, sandbox_id: str, **_: Any) -> None:
        """Removes a sandbox. That there is none is no error."""
        off_loop(lambda: self._sandboxes().remove(sandbox_id))

    def _sandboxes(self) -> Sandboxes:
        if self._used is None:
            # What it imports takes half a second, which a look at the metadata must not.
            from .sandboxes import Sandboxes  # noqa: PLC0415

            self._used = Sandboxes()
        return self._used
