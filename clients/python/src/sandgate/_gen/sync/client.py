# Generated from _async/client.py by tools/generate.py. Do not edit.
"""A connection to a server."""

from __future__ import annotations

import builtins  # noqa: TC003
from typing import TYPE_CHECKING, Self

from ..._core import convert, endpoint, requests, server, types
from ..._core import io_sync as io
from ..._core.follow import SandboxWatch
from ..._core.values import seconds, to_duration
from ...v1 import sandbox_service_pb2 as service
from .sandbox import Sandbox, Waiting
from .stream import Stream
from .transport import Transport

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from ..._core.values import Span


class Client:
    """A connection to a server. Share one: all threads of a process may use it.

    Without arguments it goes where the environment says: `SANDGATE_ADDR` (`http://127.0.0.1:7263`, `unix:///path`) and
    `SANDGATE_TOKEN`; else to the server of this machine, by the socket or the token in its state directory. Making it
    opens no connection; the first call does, and each one after a lost connection.

    `patience` is how long it goes on without contact before it gives up: with calls that may be repeated after a lost
    answer, and with following commands.
    """

    def __init__(self, address: str | None = None, *, token: str | None = None, patience: Span = 60) -> None:
        self._transport = Transport(endpoint.resolve(address, token), seconds(patience))
        self.server: server.LocalServer | None = None
        """The server that `local` started; `None` if it found one, or was not asked."""

    @classmethod
    def local(cls, *, state_dir: str | os.PathLike[str] | None = None, patience: Span = 60, timeout: Span = 20) -> Self:
        """A client of this machine's server, which is started if there is none.

        The program is the one that `SANDGATE_SERVER_BIN` names, else one on the PATH, in the wheel, or in a build of
        the repository. It is started on its Unix socket alone, with the default configuration, and runs on when this
        process ends, as sandboxes do; `server.stop()` stops it.
        """
        address, started = io.in_thread(server.find_or_start, state_dir, seconds(timeout))
        client = cls(address, patience=patience)
        client.server = started
        return client

    @property
    def address(self) -> str:
        """Where it connects to."""
        return self._transport.endpoint.address

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    def close(self) -> None:
        """Closes the connection. Sandboxes and their commands live on."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create(
        self,
        name: str | None = None,
        *,
        template: str | None = None,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        ttl: Span | None = None,
        deadline: datetime | None = None,
        idle: Span | None = None,
        warm_pool: str | None = None,
        connection: types.ConnectionMode | str | None = None,
        volumes: Sequence[types.Volume] = (),
        wait: Span | bool = True,
        keep: bool = False,
        auto_resume: bool = False,
    ) -> Sandbox:
        """Makes a sandbox, or finds the one of that name, and waits until it is ready.

        It is removed after `ttl` or at the `deadline`, and when it idled for `idle`; without them the template decides.
        `env` is for every command. Labels, environment and limits of one that exists stay as they are; one that was
        made from another template raises `SandboxAlreadyExists`.

        On Kubernetes `warm_pool` says which pool to take it from, and `volumes` are made for it, which is always a cold
        start; `connection` is the way to reach it, if not the server's own choice.

        `wait` may be a span, after which it is given as it is, or `False`. Used in a `with` it is deleted at the
        end, unless `keep` is true. With `auto_resume` calls resume it first when it is suspended.

        Without a name the server makes one up, and a lost answer raises `ConnectionLost`: to repeat the call would make
        another sandbox. The server removes one whose answer did not get through.
        """
        request = requests.create(name, template, labels, env, ttl, deadline, idle, warm_pool, connection, volumes)
        waiting = Waiting(None if isinstance(wait, bool) else wait)
        request.no_wait = wait is False
        request.max_wait.CopyFrom(to_duration(waiting.next_call()) or request.max_wait)
        send = self._transport.repeat if name else self._transport.once
        answer = send(lambda stub: stub.Create, request)
        info = convert.sandbox(answer.sandbox)
        sandbox = Sandbox(
            self._transport,
            requests.Target(info.name, auto_resume=auto_resume),
            info,
            keep=keep,
            created=answer.created,
            resumed=answer.resumed,
        )
        if wait is not False and not waiting.over(info):
            sandbox.wait_ready(waiting.left())
        return sandbox

    def attach(self, name: str, *, wait: Span | bool = True, keep: bool = True, auto_resume: bool = False) -> Sandbox:
        """Finds a sandbox, resumes it if it is suspended, and waits until it is ready. Never makes one.

        Raises `SandboxNotFound`. In a `with` it is kept, unless `keep` is false.
        """
        waiting = Waiting(None if isinstance(wait, bool) else wait)
        request = service.AttachRequest(sandbox=name, no_wait=wait is False, max_wait=to_duration(waiting.next_call()))
        answer = self._transport.repeat(lambda stub: stub.Attach, request)
        info = convert.sandbox(answer.sandbox)
        target = requests.Target(name, auto_resume=auto_resume)
        sandbox = Sandbox(self._transport, target, info, keep=keep, resumed=answer.resumed)
        if wait is not False and not waiting.over(info):
            sandbox.wait_ready(waiting.left())
        return sandbox

    def sandbox(self, name: str, *, auto_resume: bool = False) -> Sandbox:
        """A sandbox by its name. Makes no call, so there may be none."""
        return Sandbox(self._transport, requests.Target(name, auto_resume=auto_resume))

    def get(self, name: str) -> types.SandboxInfo:
        """One sandbox, with what it uses. Does not resume it and does not count as activity."""
        return self.sandbox(name).refresh()

    def list(self, label_selector: str = "") -> builtins.list[types.SandboxInfo]:
        """All sandboxes whose labels match, sorted by name: `team=red,stage!=old,tier in (a,b),!temporary`."""
        request = service.ListRequest(label_selector=label_selector)
        found: builtins.list[types.SandboxInfo] = []
        while True:
            page = self._transport.repeat(lambda stub: stub.List, request)
            found.extend(convert.sandbox(sandbox) for sandbox in page.sandboxes)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def watch(self, label_selector: str = "") -> Stream[types.WatchEvent]:
        """All sandboxes there are, then every change, also across lost connections.

        First comes `Snapshot`, a `Changed` for each that there is, and `Synced`. A snapshot may come again.
        """
        return Stream(self._transport, lambda stub: stub.Watch, SandboxWatch(label_selector))
