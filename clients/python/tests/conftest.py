"""A real server for the tests, and both clients behind one face.

A test that is a coroutine gets a client that is synchronous in one run and asynchronous in the other. `done` and `each`
see to the difference. The synchronous one is then used while an event loop runs in its thread, as in Jupyter.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support import Server, done, new_name

import sandgate
from sandgate._async.transport import AsyncTransport
from sandgate._gen.sync.transport import Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


# Shells have what they run in the background ignore Ctrl-C, which is inherited. Tests interrupt what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine in a loop of its own. Async generators among its fixtures are run around it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(_run(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names}))
    return True


async def _run(test: Any, arguments: dict[str, Any]) -> None:
    opened: list[AsyncIterator[Any]] = []
    made: dict[Any, Any] = {}
    try:
        for name, value in arguments.items():
            if isinstance(value, Lazy):
                if value not in made:
                    opened.append(value.open(made))
                    made[value] = await anext(opened[-1])
                arguments[name] = made[value]
        await test(**arguments)
    finally:
        for source in reversed(opened):
            await anext(source, None)


class Lazy:
    """Something that is opened in the test's own loop."""

    def __init__(self, server: Server, kind: str) -> None:
        self._server = server
        self._kind = kind

    async def open(self, made: dict[Any, Any]) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield


class LazyClient(Lazy):
    async def open(self, made: dict[Any, Any]) -> AsyncIterator[Any]:
        kind = sandgate.Client if self._kind == "sync" else sandgate.AsyncClient
        client = kind(self._server.address)
        yield client
        await done(client.close())


class LazySandbox(Lazy):
    def __init__(self, server: Server, kind: str, client: LazyClient) -> None:
        super().__init__(server, kind)
        self._client = client

    async def open(self, made: dict[Any, Any]) -> AsyncIterator[Any]:
        client: Any = made.get(self._client)
        source = None
        if client is None:
            source = self._client.open(made)
            client = await anext(source)
        sandbox = await done(client.create(new_name(), ttl=600))
        yield sandbox
        await done(sandbox.delete())
        if source is not None:
            await anext(source, None)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for most tests."""
    with Server() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server for one test, to be killed."""
    with Server() as server:
        yield server


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(server: Server, kind: str) -> LazyClient:
    return LazyClient(server, kind)


@pytest.fixture
def sandbox(server: Server, kind: str, client: LazyClient) -> LazySandbox:
    return LazySandbox(server, kind, client)


@pytest.fixture
def async_sandbox(server: Server) -> LazySandbox:
    """For what only tasks can do."""
    return LazySandbox(server, "async", LazyClient(server, "async"))


@pytest.fixture
def sync_sandbox(server: Server) -> Iterator[sandgate.Sandbox]:
    with sandgate.Client(server.address) as client, client.create(new_name(), ttl=600) as sandbox:
        yield sandbox


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all calls that are made from now on."""
    names: list[str] = []

    class Recording:
        def __init__(self, stub: Any) -> None:
            self._stub = stub

        def __getattr__(self, name: str) -> Any:
            names.append(name)
            return getattr(self._stub, name)

    def record(kind: Any) -> None:
        real = kind._stub

        def recording(transport: Any) -> Recording:
            return Recording(real(transport))

        monkeypatch.setattr(kind, "_stub", recording)

    record(AsyncTransport)
    record(Transport)
    return names
