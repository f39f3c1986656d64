# Generated from _async/transport.py by tools/generate.py. Do not edit.
"""Making calls: once, or again after a lost answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import grpc

from ..._core import io_sync as io
from ..._core.errors import ClosedError, NoServer, SandgateError
from ..._core.retry import Outage
from ..._core.status import from_rpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..._core.endpoint import Endpoint
    from ...v1 import sandbox_service_pb2 as service

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


class Transport:
    """A connection to a server. When it breaks, the next call makes it again."""

    def __init__(self, endpoint: Endpoint, patience: float) -> None:
        self.endpoint = endpoint
        self.patience = patience
        self.metadata = endpoint.metadata
        self._channels = io.Channels(endpoint)
        self._contacted = False
        self._closed = False

    def outage(self) -> Outage:
        """A time without contact that may come."""
        return Outage(self.patience, contacted=self._contacted)

    def contact(self) -> None:
        """A server answered."""
        self._contacted = True

    def once(self, pick: Callable[[io.Stub], io.UnaryUnary[RequestT, AnswerT]], request: RequestT) -> AnswerT:
        """Makes a call that could take effect twice if it were repeated."""
        stub = self._stub()
        try:
            answer = pick(stub)(request, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self._failed(stub, error) from None
        self._contacted = True
        return answer

    def repeat(self, pick: Callable[[io.Stub], io.UnaryUnary[RequestT, AnswerT]], request: RequestT) -> AnswerT:
        """Makes a call that may be repeated after a lost answer, until it is answered or patience ends."""
        outage = self.outage()
        while True:
            try:
                return self.once(pick, request)
            except SandgateError as error:
                delay = outage.failed(error)
            io.sleep(delay)

    def stream(
        self, pick: Callable[[io.Stub], io.UnaryStream[RequestT, AnswerT]], request: RequestT
    ) -> tuple[io.StreamCall[AnswerT], Callable[[grpc.RpcError], SandgateError]]:
        """Opens a stream of answers. Also gives what makes an error of ours of one of its own."""
        stub = self._stub()
        return pick(stub)(request, metadata=self.metadata), lambda error: self._failed(stub, error)

    def upload(self, messages: Iterator[service.UploadRequest]) -> service.UploadResponse:
        """Sends a stream of messages, once."""
        stub = self._stub()
        try:
            answer = io.upload(stub, messages, self.metadata)
        except grpc.RpcError as error:
            raise self._failed(stub, error) from None
        self._contacted = True
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self._closed = True
        self._channels.close()

    def _stub(self) -> io.Stub:
        if self._closed:
            raise ClosedError("the client is closed")
        return self._channels.stub()

    def _failed(self, stub: io.Stub, error: grpc.RpcError) -> SandgateError:
        if self._closed:
            return ClosedError("the client was closed while a call was under way")
        failure = from_rpc(error)
        if failure.request_id is not None:
            self._contacted = True
        if isinstance(failure, NoServer):
            self._channels.refused(stub)
        return failure
