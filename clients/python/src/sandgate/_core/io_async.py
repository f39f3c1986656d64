"""What differs between the two clients, for asyncio: channels, sleeping, threads. `io_sync` has the same names."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import grpc.aio

from ..v1.sandbox_service_pb2_grpc import SandboxServiceStub
from .channel import SILENCE, fork_generation, options, warn_after_fork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from ..v1 import sandbox_service_pb2 as service
    from ..v1.sandbox_service_pb2_grpc import SandboxServiceAsyncStub as Stub
    from .endpoint import Endpoint

    UnaryUnary = grpc.aio.UnaryUnaryMultiCallable
    UnaryStream = grpc.aio.UnaryStreamMultiCallable
    StreamCall = grpc.aio.UnaryStreamCall

T = TypeVar("T")
P = ParamSpec("P")
RequestT = TypeVar("RequestT")
MessageT = TypeVar("MessageT")

Lock = asyncio.Lock
sleep = asyncio.sleep
in_thread = asyncio.to_thread

_BATCH = 16


class Channels:
    """One channel for each event loop that uses the client: gRPC's belong to one."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._stubs: dict[asyncio.AbstractEventLoop, tuple[grpc.aio.Channel, Stub]] = {}
        self._generation = fork_generation()

    def stub(self) -> Stub:
        """The stub of the running loop."""
        if self._generation != fork_generation():
            warn_after_fork()
            self._generation = fork_generation()
            _LEFT_BEHIND.append(self._stubs)
            self._stubs = {}
        loop = asyncio.get_running_loop()
        found = self._stubs.get(loop)
        if found is None:
            # Copied first: loops of other threads come and go meanwhile.
            for gone in [other for other in list(self._stubs) if other.is_closed()]:
                self._stubs.pop(gone, None)
            channel = grpc.aio.insecure_channel(self._endpoint.target, options(self._endpoint.target))
            found = self._stubs[loop] = (channel, SandboxServiceStub(channel))
        return found[1]

    def refused(self, stub: Stub) -> None:
        """Nothing listens. The channel goes on trying by itself."""

    async def close(self) -> None:
        """Closes the channel of this loop, and leaves those of others to them."""
        found = self._stubs.pop(asyncio.get_running_loop(), None)
        for loop, (channel, _) in list(self._stubs.items()):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(channel.close(), loop)
        self._stubs.clear()
        if found is not None:
            await found[0].close()


# A parent's channels must not be closed by its child, not even by the garbage collector.
_LEFT_BEHIND: list[object] = []


class Watchdog:
    """Cancels a call on which nothing was heard for too long: a server sends a heartbeat every 15 s."""

    def __init__(self, call: StreamCall[Any, Any]) -> None:
        self.fired = False
        self._call = call
        self.heard_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(SILENCE, self._look)

    def heard(self) -> None:
        """Something came."""
        self.heard_at = time.monotonic()

    def stop(self) -> None:
        """The call is over."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self.heard_at + SILENCE - time.monotonic()
        if left <= 0:
            self.fired = True
            self._call.cancel()
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._look)


async def read(call: StreamCall[Any, MessageT], watchdog: Watchdog) -> MessageT | None:
    """The next message; `None` at the end."""
    try:
        message = await call.read()
    except asyncio.CancelledError:
        # gRPC gives this for a call that we cancelled, too.
        if watchdog.fired:
            return None
        raise
    return None if message is grpc.aio.EOF else cast("MessageT", message)


async def upload(
    stub: Stub, messages: Iterator[service.UploadRequest], metadata: tuple[tuple[str, str], ...]
) -> service.UploadResponse:
    """Sends a stream of messages, which are made in a thread: they read files."""
    call = stub.Upload(metadata=metadata)
    try:
        while batch := await asyncio.to_thread(_some, messages):
            for message in batch:
                await call.write(message)
        await call.done_writing()
    except asyncio.InvalidStateError:
        pass  # The call is over: awaiting it says why.
    except BaseException:
        call.cancel()
        raise
    return await call


def _some(messages: Iterator[service.UploadRequest]) -> list[service.UploadRequest]:
    return [message for _, message in zip(range(_BATCH), messages, strict=False)]


def pull(read_next: Callable[[], Coroutine[Any, Any, bytes]]) -> Callable[[], bytes]:
    """Lets a thread take from a stream of this loop."""
    loop = asyncio.get_running_loop()

    def take() -> bytes:
        return asyncio.run_coroutine_threadsafe(read_next(), loop).result()

    return take


async def shielded(work: Awaitable[T]) -> T:
    """Finishes what must be done also when the caller is cancelled."""
    return await asyncio.shield(work)


async def notify(callback: Callable[[T], object], value: T) -> None:
    """Calls back, and waits if the callback is asynchronous."""
    answer = callback(value)
    if inspect.isawaitable(answer):
        await answer


class Background:
    """Work beside the caller's own."""

    def __init__(self, work: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs) -> None:
        self._task = asyncio.get_running_loop().create_task(work(*args, **kwargs))

    async def finish(self) -> None:
        """Waits for its end, and raises what it raised."""
        await self._task

    def abandon(self) -> None:
        """Ends it as soon as possible."""
        self._task.cancel()
