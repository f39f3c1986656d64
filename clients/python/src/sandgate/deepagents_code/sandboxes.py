"""The sandboxes of one dcode: found, made, removed."""

from __future__ import annotations

import logging
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deepagents_code.integrations.sandbox_provider import (  # pyright: ignore[reportMissingModuleSource]
    SandboxError,
    SandboxNotFoundError,
)

from .. import Client, errors
from ..deepagents import SandgateBackend
from . import keeper
from ._calls import off_loop

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator

    from deepagents.backends.protocol import ExecuteResponse

    from .. import Sandbox
    from ._wishes import Wishes

log = logging.getLogger(__name__)

LABELS = {"made-by": "dcode"}


class DcodeBackend(SandgateBackend):
    """A backend whose `execute` may be called on dcode's event loop, as it is with a set-up script."""

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command to its end."""
        return off_loop(lambda: super(DcodeBackend, self).execute(command, timeout=timeout))


class Sandboxes:
    """What a provider has to do with the server. Its methods block."""

    def __init__(self) -> None:
        self._client = Client()
        self._made: dict[str, tuple[Sandbox, subprocess.Popen[bytes] | None]] = {}

    def find(self, name: str) -> DcodeBackend:
        """The sandbox of that name. It is nobody's to remove."""
        with self._told_to_dcode():
            return DcodeBackend(self._client.attach(name, auto_resume=True))

    def make(self, wishes: Wishes) -> DcodeBackend:
        """A new sandbox, and a keeper for it."""
        # With a name, a lost answer is asked for again and makes no second one.
        name = f"dcode-{secrets.token_hex(5)}"
        with self._told_to_dcode():
            sandbox = self._client.create(
                name, template=wishes.template, labels=LABELS, idle=wishes.idle, ttl=wishes.ttl, auto_resume=True
            )
            self._made[name] = (sandbox, self._keeper_of(sandbox, wishes.idle))
            return DcodeBackend(sandbox)

    def _keeper_of(self, sandbox: Sandbox, idle: float) -> subprocess.Popen[bytes] | None:
        uid = sandbox.info.uid if sandbox.info else ""
        try:
            return keeper.start(self._client.address, sandbox.name, uid, idle)
        except OSError as error:
            log.warning("nobody removes %s if dcode is killed, but its idle limit: %s", sandbox.name, error)
            return None

    def remove(self, name: str) -> None:
        """Removes a sandbox. Of those made here that very one, and not a later one of the same name."""
        sandbox, process = self._made.pop(name, (self._client.sandbox(name), None))
        with self._told_to_dcode():
            sandbox.delete()
        if process is not None:
            keeper.dismiss(process)

    @contextmanager
    def _told_to_dcode(self) -> Generator[None]:
        """Errors as dcode knows them. It shows one line."""
        try:
            yield
        except errors.ConfigError:
            raise
        except errors.SandboxNotFound as error:
            raise SandboxNotFoundError(
                f"{error.message}; `sandgate create NAME` makes one, `sandgate ls` lists them"
            ) from error
        except errors.NoServer as error:
            hint = "start `sandgate-server`, or say in SANDGATE_ADDR where it is"
            raise SandboxError(f"no Sandgate server at {self._client.address}: {hint}") from error
        except errors.SandgateError as error:
            raise SandboxError(" ".join(str(error).split())) from error
