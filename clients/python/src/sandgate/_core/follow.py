"""What a follower of a stream has seen, so that a stream that broke goes on where it was. Knows nothing of connections.

Each class says what to ask for next, takes a message, and gives what is new in it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol, TypeVar

from .._gen.reasons import HashMismatch
from ..v1 import exec_pb2, files_pb2
from ..v1 import sandbox_service_pb2 as service
from . import convert, types
from .errors import ConnectionLost, SandgateError
from .requests import version
from .status import from_file_error
from .values import path_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .requests import Target, View
    from .values import Path

RequestT_co = TypeVar("RequestT_co", covariant=True)
MessageT_contra = TypeVar("MessageT_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

STREAMS = {
    exec_pb2.OUTPUT_STREAM_STDOUT: types.OutputStream.STDOUT,
    exec_pb2.OUTPUT_STREAM_STDERR: types.OutputStream.STDERR,
}


class Follow(Protocol[RequestT_co, MessageT_contra, T_co]):
    """What is followed."""

    @property
    def ended(self) -> bool:
        """Nothing follows."""
        ...

    def request(self) -> RequestT_co:
        """What the next stream begins with."""
        ...

    def take(self, message: MessageT_contra) -> Iterable[T_co]:
        """Takes a message of the current stream and gives what is new in it."""
        ...


class ExecFollow:
    """A command: each byte and each event once, in order, or told as a gap."""

    def __init__(self, target: Target, exec_id: str, seen: types.Offsets | None = None) -> None:
        self.target = target
        self.exec_id = exec_id
        self.ended = False
        self._seen = {
            types.OutputStream.STDOUT: seen.stdout if seen else 0,
            types.OutputStream.STDERR: seen.stderr if seen else 0,
        }
        self._started = False
        self._exited = False

    @property
    def seen(self) -> types.Offsets:
        """How much of each stream was given."""
        return types.Offsets(self._seen[types.OutputStream.STDOUT], self._seen[types.OutputStream.STDERR])

    def request(self) -> service.FollowExecRequest:
        """From the first bytes not seen."""
        seen = exec_pb2.ExecOffsets(stdout=self.seen.stdout, stderr=self.seen.stderr)
        target = service.FollowTarget(exec_id=self.exec_id)
        getattr(target, "from").offsets.CopyFrom(seen)
        return service.FollowExecRequest(**self.target.fields, targets=[target])

    def take(self, message: service.FollowExecResponse) -> Iterator[types.ExecEvent]:
        """What is new in an event."""
        event = message.event
        match event.WhichOneof("event"):
            case "output":
                yield from self._output(event.output)
            case "started" if not self._started:
                self._started = True
                started = event.started
                at = convert.to_datetime(started.started_at)
                yield types.Started(started.pid, at, started.incarnation)
            case "start_failed":
                self.ended = True
                yield types.StartFailed(convert.start_failure(event.start_failed))
            case "gap" if event.gap.stream in STREAMS:
                yield from self._skip_to(STREAMS[event.gap.stream], event.gap.to)
            case "exited" if not self._exited:
                self._exited = True
                yield types.Exited(convert.exit_(event.exited))
            case "ended":
                total = convert.offsets(event.ended.total)
                yield from self._skip_to(types.OutputStream.STDOUT, total.stdout)
                yield from self._skip_to(types.OutputStream.STDERR, total.stderr)
                self.ended = True
                yield types.Ended(total)
            case _:
                pass

    def _output(self, output: exec_pb2.ExecOutput) -> Iterator[types.ExecEvent]:
        stream = STREAMS.get(output.stream)
        if stream is None:
            return
        # A stream that jumps without saying so has lost bytes all the same, and that is never silent.
        yield from self._skip_to(stream, output.offset)
        begin = self._seen[stream]
        data = output.data[begin - output.offset :] if begin > output.offset else output.data
        if data:
            self._seen[stream] = begin + len(data)
            yield types.Output(stream, begin, data)

    def _skip_to(self, stream: types.OutputStream, to: int) -> Iterator[types.ExecEvent]:
        begin = self._seen[stream]
        if to > begin:
            self._seen[stream] = to
            yield types.Gap(stream, begin, to)


class SandboxWatch:
    """All sandboxes and their changes, by resume token."""

    ended = False

    def __init__(self, label_selector: str) -> None:
        self._selector = label_selector
        self._token = ""

    def request(self) -> service.WatchRequest:
        """After the last token."""
        return service.WatchRequest(label_selector=self._selector, resume_token=self._token)

    def take(self, message: service.WatchResponse) -> Iterator[types.WatchEvent]:
        """The event, if it is one."""
        event = convert.watch_event(message)
        self._token = message.resume_token or self._token
        if event is not None:
            yield event


class FileWatch:
    """What changes beneath a directory. What a broken stream missed is told as `OVERFLOW`."""

    def __init__(self, request: service.WatchFilesRequest) -> None:
        self._request = request
        self._watching = False
        self.ended = False

    def request(self) -> service.WatchFilesRequest:
        """The same as before."""
        return self._request

    def take(self, message: service.WatchFilesResponse) -> Iterator[types.FileEvent]:
        """The event, if it is one."""
        if message.WhichOneof("message") != "event":
            return
        event = convert.file_event(message.event)
        if event.kind is types.FileEventKind.WATCHING:
            if self._watching:
                event = types.FileEvent(types.FileEventKind.OVERFLOW)
            self._watching = True
        self.ended = event.kind is types.FileEventKind.ROOT_GONE
        yield event


class FileDownload:
    """The content of one file: each byte once, checked by its SHA-256."""

    def __init__(self, target: Target, view: View, path: Path) -> None:
        self._target = target
        self._view = view
        self.path = path
        self.info: types.FileInfo | None = None
        self.received = 0
        self.ended = False
        self._hash = hashlib.sha256()
        self._complete = False

    def request(self) -> service.DownloadRequest:
        """From the first byte not received, of the same version."""
        self._hash = hashlib.sha256()
        path = files_pb2.DownloadPath(**path_fields(self.path))
        if self.received and self.info:
            path.offset = self.received
            path.expected.CopyFrom(version(types.Version.of(self.info)) or path.expected)
        return service.DownloadRequest(
            **self._target.read, view=self._view.message, paths=[path], format=files_pb2.TRANSFER_FORMAT_FILES
        )

    def take(self, message: service.DownloadResponse) -> Iterator[bytes]:
        """The bytes, if it has some."""
        match message.WhichOneof("message"):
            case "chunk":
                self._hash.update(message.chunk)
                self.received += len(message.chunk)
                yield message.chunk
            case "entry":
                if self.info is None:
                    self.info = convert.file_info(message.entry.info)
                # What has no content is somebody else's business.
                self.ended = not self.info.is_file
            case "entry_end":
                if message.entry_end.sha256 != self._hash.digest():
                    raise HashMismatch(f"{self.path!r} was damaged on its way")
                self._complete = True
            case "failure":
                raise from_file_error(message.failure.error)
            case "summary":
                self.ended = True
                if not self._complete:
                    raise ConnectionLost("the download was cut")
            case _:
                pass


class TarDownload:
    """A tree as a tar stream. It can't be resumed."""

    def __init__(self, request: service.DownloadRequest) -> None:
        self._request = request
        self._begun = False
        self.ended = False
        self.summary: files_pb2.DownloadSummary | None = None
        self.failures: list[SandgateError] = []

    def request(self) -> service.DownloadRequest:
        """Once."""
        if self._begun:
            raise ConnectionLost("the connection was lost in the middle of a tar")
        return self._request

    def take(self, message: service.DownloadResponse) -> Iterator[bytes]:
        """The bytes, if it has some."""
        match message.WhichOneof("message"):
            case "chunk":
                self._begun = True
                yield message.chunk
            case "failure":
                self.failures.append(from_file_error(message.failure.error))
            case "summary":
                self.ended = True
                self.summary = message.summary
            case _:
                pass
