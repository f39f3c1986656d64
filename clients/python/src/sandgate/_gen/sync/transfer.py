# Generated from _async/transfer.py by tools/generate.py. Do not edit.
"""Files in and out of a sandbox. Nothing larger than a chunk is held, but where bytes are asked for."""

from __future__ import annotations

import contextlib
import hashlib
from io import BytesIO
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, BinaryIO

from ..._core import convert, types
from ..._core import io_sync as io
from ..._core import local_files as local
from ..._core.errors import TransferFailed
from ..._core.follow import FileDownload, TarDownload
from ..._core.status import from_file_error
from ..._core.values import new_id, new_request_id, path_fields
from ..._gen.reasons import FileIsDirectory, FileNotRegular
from ...v1 import files_pb2
from ...v1 import sandbox_service_pb2 as service
from .stream import Stream

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from ..._core.requests import Target, View
    from ..._core.values import Path
    from .transport import Transport

# Of one WriteChunk; the contract takes 2 MiB.
CHUNK = 1 << 20
WRITE_AT_ONCE = 1 << 20


def upload_file(
    transport: Transport,
    target: Target,
    view: View,
    source: local.Source,
    path: Path,
    *,
    mode: int | None = None,
    progress: Callable[[int, int | None], object] | None = None,
) -> types.FileInfo:
    """Sends one file, in chunks that carry their offset: a lost connection loses nothing of it."""
    with local.open_source(source) as (file, size, own_mode):
        entry = files_pb2.UploadEntry(**path_fields(path), mode=own_mode if mode is None else mode)
        upload_id, sha256, offset = new_id(), hashlib.sha256(), 0
        chunk = read_chunk(file)
        while True:
            following = read_chunk(file) if len(chunk) == CHUNK else b""
            sha256.update(chunk)
            # A message for each chunk: one that is used again keeps all that it ever held.
            request = service.WriteChunkRequest(
                **target.fields,
                upload_id=upload_id,
                view=view.message,
                entry=entry,
                offset=offset,
                data=chunk,
                finish=not following,
                sha256=b"" if following else sha256.digest(),
            )
            answer = transport.repeat(lambda stub: stub.WriteChunk, request)
            offset += len(chunk)
            if progress is not None:
                progress(offset, size)
            if not following:
                return convert.file_info(answer.info)
            chunk = following


def read_chunk(file: BinaryIO) -> bytes:
    """What follows in a file. In memory that takes no time, so it takes no thread."""
    if isinstance(file, BytesIO):
        return local.read_full(file, CHUNK)
    return io.in_thread(local.read_full, file, CHUNK)


def upload_tree(
    transport: Transport,
    target: Target,
    view: View,
    chunks: local.Chunks,
    path: Path,
    *,
    progress: Callable[[int, int | None], object] | None = None,
) -> types.TransferResult:
    """Sends a tar, once."""
    start = service.UploadRequest(
        start=files_pb2.UploadStart(
            **target.fields,
            **path_fields(path, "directory"),
            view=view.message,
            format=files_pb2.TRANSFER_FORMAT_TAR,
        )
    )
    request_id = new_request_id()
    answer = transport.upload(local.messages(start, chunks, progress), request_id)
    if answer.failures_total:
        failures = [from_file_error(failure.error) for failure in answer.failures]
        raise TransferFailed(
            f"{answer.failures_total} of the entries could not be made: {failures[0]}",
            failures=failures,
            total=answer.failures_total,
        ).of_request(request_id)
    return types.TransferResult(answer.entries, answer.bytes)


def open_download(transport: Transport, target: Target, view: View, path: Path) -> tuple[FileDownload, Stream[bytes]]:
    """A file's chunks."""
    state = FileDownload(target, view, path)
    return state, Stream(transport, lambda stub: stub.Download, state)


def open_tar(transport: Transport, target: Target, view: View, path: Path) -> tuple[TarDownload, Stream[bytes]]:
    """A tree's tar."""
    request = service.DownloadRequest(
        **target.read,
        view=view.message,
        paths=[files_pb2.DownloadPath(**path_fields(path))],
        format=files_pb2.TRANSFER_FORMAT_TAR,
    )
    state = TarDownload(request)
    return state, Stream(transport, lambda stub: stub.Download, state)


def must_be_file(state: FileDownload) -> None:
    """Raises what is wrong with the path, if it is no file."""
    if state.info is not None and not state.info.is_file:
        kind = FileIsDirectory if state.info.is_dir else FileNotRegular
        raise kind(f"{state.path!r} is a {state.info.type}", metadata={"path": state.info.path})


def download_bytes(
    transport: Transport,
    target: Target,
    view: View,
    path: Path,
    progress: Callable[[int, int | None], object] | None = None,
) -> bytes:
    """A file's content, which must fit into memory."""
    state, stream = open_download(transport, target, view, path)
    chunks: list[bytes] = []
    with stream:
        for chunk in stream:
            chunks.append(chunk)
            if progress is not None:
                progress(state.received, state.info.size if state.info else None)
    must_be_file(state)
    return b"".join(chunks)


def download_to(
    transport: Transport,
    target: Target,
    view: View,
    path: Path,
    file: BinaryIO,
    progress: Callable[[int, int | None], object] | None = None,
) -> FileDownload:
    """A file's content into an open file. What is no file is left to the caller."""
    state, stream = open_download(transport, target, view, path)
    waiting: list[bytes] = []
    held = 0
    with stream:
        for chunk in stream:
            waiting.append(chunk)
            held += len(chunk)
            if held >= WRITE_AT_ONCE:
                io.in_thread(file.writelines, waiting)
                waiting, held = [], 0
            if progress is not None:
                progress(state.received, state.info.size if state.info else None)
    io.in_thread(file.writelines, waiting)
    return state


def download_path(
    transport: Transport,
    target: Target,
    view: View,
    path: Path,
    local_path: str | os.PathLike[str],
    progress: Callable[[int, int | None], object] | None = None,
) -> types.TransferResult:
    """A file or a tree into this machine's file system."""
    destination = LocalPath(local_path)
    with local.replacing(destination) as (file, commit):
        state = download_to(transport, target, view, path, file, progress)
        if state.info is None or not state.info.is_dir:
            must_be_file(state)
            io.in_thread(commit)
            return types.TransferResult(1, state.received)
    return download_tree(transport, target, view.beneath(state.info.path), destination, progress)


def download_tree(
    transport: Transport,
    target: Target,
    view: View,
    destination: LocalPath,
    progress: Callable[[int, int | None], object] | None = None,
) -> types.TransferResult:
    """All of a view. Nothing in it leads out of the destination, whatever the sandbox sends."""
    state, stream = open_tar(transport, target, view, "/")

    def next_chunk() -> bytes:
        for chunk in stream:
            return chunk
        return b""

    with stream:
        unpacked = io.in_thread(local.unpack, io.pull(next_chunk), destination, progress)
        with contextlib.suppress(StopIteration):
            while True:
                stream.__next__()
    if state.failures:
        raise TransferFailed(
            f"{len(state.failures)} of the entries could not be read: {state.failures[0]}",
            failures=state.failures,
            total=len(state.failures),
        ).of_request(stream.request_id)
    return unpacked


def download_tar_to(
    transport: Transport, target: Target, view: View, path: Path, file: BinaryIO
) -> types.TransferResult:
    """A file or tree as a tar, into an open file."""
    state, stream = open_tar(transport, target, view, path)
    with stream:
        for chunk in stream:
            io.in_thread(file.write, chunk)
    if state.failures:
        raise state.failures[0].of_request(stream.request_id)
    summary = state.summary
    return types.TransferResult(summary.entries if summary else 0, summary.bytes if summary else 0)
