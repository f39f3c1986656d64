"""What differs between the two clients, for threads: channels, sleeping. `io_async` has the same names."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar

import grpc

from ..v1.sandbox_service_pb2_grpc import SandboxServiceStub
from .channel import SILENCE, fork_generation, options, warn_after_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..v1 import sandbox_service_pb2 as service
    from .endpoint import Endpoint

    UnaryUnary = grpc.UnaryUnaryMultiCallable
    UnaryStream = grpc.UnaryStreamMultiCallable

T = TypeVar("T")
P = ParamSpec("P")
MessageT = TypeVar("MessageT")
MessageT_co = TypeVar("MessageT_co", covariant=True)


class StreamCall(Protocol[MessageT_co]):
    """A stream of answers."""

    def __iter__(self) -> Iterator[MessageT_co]: ...
    def __next__(self) -> MessageT_co: ...
    def cancel(self) -> object: ...


Stub = SandboxServiceStub
Lock = threading.Lock
sleep = time.sleep


class Channels:
    """One channel, which all threads share."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._open: tuple[grpc.Channel, Stub] | None = None
        self._generation = fork_generation()

    def stub(self) -> Stub:
        """The stub."""
        if self._generation != fork_generation():
            warn_after_fork()
            # A thread that is not there any more may have held it.
            self._lock = threading.Lock()
            self._generation = fork_generation()
            _LEFT_BEHIND.append(self._open)
            self._open = None
        with self._lock:
            if self._open is None:
                channel = grpc.insecure_channel(self._endpoint.target, options(self._endpoint.target))
                self._open = (channel, SandboxServiceStub(channel))
            return self._open[1]

    def refused(self, stub: Stub) -> None:
        """Nothing listens. A channel that no call waits on looks only every 5 s, so the next call gets a new one.

        The old one is left to calls that may still be on it.
        """
        with self._lock:
            if self._open is not None and self._open[1] is stub:
                self._open = None

    def close(self) -> None:
        """Closes it; calls that are under way are cancelled."""
        with self._lock:
            found, self._open = self._open, None
        if found is not None:
            found[0].close()


# A parent's channel must not be closed by its child, not even by the garbage collector.
_LEFT_BEHIND: list[object] = []


class Watchdog:
    """Cancels a call on which nothing was heard for too long: a server sends a heartbeat every 15 s."""

    def __init__(self, call: StreamCall[Any]) -> None:
        self.fired = False
        self._call = call
        self.heard_at = time.monotonic()
        _Kennel.take(self)

    def heard(self) -> None:
        """Something came."""
        self.heard_at = time.monotonic()

    def stop(self) -> None:
        """The call is over."""
        _Kennel.release(self)

    def look(self) -> None:
        """Cancels the call if it is time."""
        if time.monotonic() > self.heard_at + SILENCE:
            self.fired = True
            self.stop()
            self._call.cancel()


class _Kennel:
    """One thread looks after all calls of the process."""

    _dogs: ClassVar[weakref.WeakSet[Watchdog]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _generation: ClassVar[int | None] = None

    @classmethod
    def take(cls, dog: Watchdog) -> None:
        if cls._generation != fork_generation():
            # Neither thread nor what it may have held is there after a fork.
            cls._lock, cls._dogs = threading.Lock(), weakref.WeakSet()
            cls._generation = fork_generation()
            threading.Thread(target=cls._guard, name="sandgate-watchdog", daemon=True).start()
        with cls._lock:
            cls._dogs.add(dog)

    @classmethod
    def release(cls, dog: Watchdog) -> None:
        with cls._lock:
            cls._dogs.discard(dog)

    @classmethod
    def _guard(cls) -> None:
        while True:
            time.sleep(SILENCE / 3)
            with cls._lock:
                dogs = list(cls._dogs)
            for dog in dogs:
                dog.look()


def read(call: StreamCall[MessageT], watchdog: Watchdog) -> MessageT | None:
    """The next message; `None` at the end."""
    try:
        return next(call, None)
    except grpc.RpcError:
        if watchdog.fired:
            return None
        raise


def upload(
    stub: Stub, messages: Iterator[service.UploadRequest], metadata: tuple[tuple[str, str], ...]
) -> service.UploadResponse:
    """Sends a stream of messages. gRPC makes them in a thread of its own, and hides what they raise."""
    raised: list[BaseException] = []

    def guarded() -> Iterator[service.UploadRequest]:
        try:
            yield from messages
        except BaseException as error:
            raised.append(error)
            raise

    try:
        return stub.Upload(guarded(), metadata=metadata)
    except grpc.RpcError:
        if raised:
            raise raised[0] from None
        raise


def pull(read_next: Callable[[], bytes]) -> Callable[[], bytes]:
    """Takes from a stream."""
    return read_next


def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Does it here: this thread is the caller's own."""
    return work(*args, **kwargs)


def shielded(done: T) -> T:
    """Was done."""
    return done


def notify(callback: Callable[[T], object], value: T) -> None:
    """Calls back."""
    callback(value)


class Background:
    """Work beside the caller's own."""

    def __init__(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        self._raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work, args, kwargs), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            work(*args, **kwargs)
        except BaseException as error:
            self._raised = error

    def finish(self) -> None:
        """Waits for its end, and raises what it raised."""
        self._thread.join()
        if self._raised is not None:
            raise self._raised

    def abandon(self) -> None:
        """A thread can't be ended: it ends with the next answer that it gets."""
