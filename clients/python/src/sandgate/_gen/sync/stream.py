# Generated from _async/stream.py by tools/generate.py. Do not edit.
"""A stream of answers that goes on where it was when the connection is lost or the server restarted."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import grpc

from ..._core import io_sync as io
from ..._core.errors import ConnectionLost, SandgateError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..._core.follow import Follow
    from .transport import Transport

T = TypeVar("T")


class Stream(Generic[T]):
    """An iterator. When the connection is lost it is made again, for as long as the client's patience lasts.

    Close it, or use it in a `with`, if you do not read it to its end. A read that is cancelled or interrupted
    takes nothing away: the next one goes on where it was.
    """

    def __init__(
        self,
        transport: Transport,
        pick: Callable[[io.Stub], io.UnaryStream[Any, Any]],
        follow: Follow[Any, Any, T],
    ) -> None:
        self._transport = transport
        self._pick = pick
        self._follow = follow
        self._outage = transport.outage()
        self._pending: deque[T] = deque()
        self._call: io.StreamCall[Any] | None = None
        self._failure: Callable[[grpc.RpcError], SandgateError]
        self._request_id: str | None = None
        self._watchdog: io.Watchdog | None = None
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not self._pending:
            if self._closed or self._follow.ended:
                self.close()
                raise StopIteration
            message = None
            try:
                message = self._read()
                self._pending.extend(self._follow.take(message))
            except SandgateError as error:
                self._drop()
                if self._closed:
                    continue
                io.sleep(self._delay(error.of_request(self._request_id)))
            except BaseException:
                # Cancelled, or Ctrl-C. To go on behind a message that is half taken would leave a gap.
                self._drop() if message is None else self.close()
                raise
        return self._pending.popleft()

    @property
    def request_id(self) -> str | None:
        """By what the server's log calls the last request; each connection makes a new one."""
        return self._request_id

    def close(self) -> None:
        """Stops following. What is followed goes on."""
        self._closed = True
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> Any:
        if self._call is None or self._watchdog is None:
            opened = self._transport.stream(self._pick, self._follow.request())
            self._call, self._request_id, self._failure = opened
            self._watchdog = io.Watchdog(self._call)
        try:
            message = io.read(self._call, self._watchdog)
        except grpc.RpcError as error:
            raise self._failure(error) from None
        if message is None:
            # Streams of what is not over do not end well; a proxy may have cut it, or nothing was heard for too long.
            raise ConnectionLost("the stream ended too early")
        self._watchdog.heard()
        self._outage.over()
        self._transport.contact()
        return message

    def _delay(self, error: SandgateError) -> float:
        try:
            return self._outage.failed(error)
        except SandgateError:
            self.close()
            raise

    def _drop(self) -> None:
        call, self._call = self._call, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.stop()
        if call is not None:
            call.cancel()
