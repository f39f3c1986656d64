# Generated from _async/transport.py by tools/generate.py. Do not edit.
"""Making calls: once, or again after a lost answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import grpc

from ..._core import io_sync as io
from ..._core.errors import ClosedError, NoServer, SandgateError
from ..._core.retry import Outage
from ..._core.status import REQUEST_ID, from_rpc
from ..._core.values import new_request_id

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
        self._channels = io.Channels(endpoint)
        self._contacted = False
        self._closed = False

    def outage(self) -> Outage:
        """A time without contact that may come."""
        return Outage(self.patience, contacted=self._contacted)

    def contact(self) -> None:
        """A server answered."""
        self._contacted = True

    def once(
        self,
        pick: Callable[[io.Stub], io.UnaryUnary[RequestT, AnswerT]],
        request: RequestT,
        request_id: str | None = None,
    ) -> AnswerT:
        """Makes a call that could take effect twice if it were repeated."""
        stub, request_id = self._stub(), request_id or new_request_id()
        try:
            answer = pick(stub)(request, metadata=self._metadata(request_id))
        except grpc.RpcError as error:
            raise self._failed(stub, error, request_id) from None
        self._contacted = True
        return answer

    def repeat(
        self,
        pick: Callable[[io.Stub], io.UnaryUnary[RequestT, AnswerT]],
        request: RequestT,
        request_id: str | None = None,
    ) -> AnswerT:
        """Makes a call that may be repeated after a lost answer, until it is answered or patience ends."""
        outage = self.outage()
        while True:
            try:
                return self.once(pick, request, request_id)
            except SandgateError as error:
                delay = outage.failed(error)
            io.sleep(delay)

    def stream(
        self, pick: Callable[[io.Stub], io.UnaryStream[RequestT, AnswerT]], request: RequestT
    ) -> tuple[io.StreamCall[AnswerT], str, Callable[[grpc.RpcError], SandgateError]]:
        """Opens a stream of answers. Also gives its request id, and what makes an error of ours of one of its own."""
        stub, request_id = self._stub(), new_request_id()
        call = pick(stub)(request, metadata=self._metadata(request_id))
        return call, request_id, lambda error: self._failed(stub, error, request_id)

    def upload(self, messages: Iterator[service.UploadRequest], request_id: str) -> service.UploadResponse:
        """Sends a stream of messages, once."""
        stub = self._stub()
        try:
            answer = io.upload(stub, messages, self._metadata(request_id))
        except grpc.RpcError as error:
            raise self._failed(stub, error, request_id) from None
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

    def _metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        return (*self.endpoint.metadata, (REQUEST_ID, request_id))

    def _failed(self, stub: io.Stub, error: grpc.RpcError, request_id: str) -> SandgateError:
        if self._closed:
            return ClosedError("the client was closed while a call was under way")
        failure = from_rpc(error)
        if failure.request_id is not None:
            self._contacted = True
        if isinstance(failure, NoServer):
            self._channels.refused(stub)
        return failure.of_request(request_id)
