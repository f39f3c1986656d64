# Generated from deepagents/_async/transfers.py by tools/generate.py. Do not edit.
"""Many files at once, in and out: small ones share a round trip, large ones go by transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepagents.backends.protocol import INVALID_PATH, FileDownloadResponse, FileUploadResponse

from ..._core import convert
from ..._core.values import path_fields
from ...deepagents import results
from ...v1 import files_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..._core.errors import SandgateError
    from .keeper import Keeper, Kept

# What one call carries; more goes by transfer.
ONE_CALL = 1 << 20
ONE_BATCH = 1_000


class Transfers:
    """Uploads and downloads. Each file succeeds or fails on its own."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Makes or replaces files, and the directories above them."""
        answers = [FileUploadResponse(path, None if results.is_path(path) else INVALID_PATH) for path, _ in files]
        wanted = [pair for pair in zip(answers, (content for _, content in files), strict=True) if not pair[0].error]
        with self._keeper.use() as kept:
            for answer, content in wanted:
                if len(content) > ONE_CALL:
                    try:
                        kept.files.write(kept.inward(answer.path), content)
                    except results.ANSWERED as error:
                        answer.error = code(error)
            for batch in batches([pair for pair in wanted if len(pair[1]) <= ONE_CALL]):
                paths = [kept.inward(answer.path) for answer, _ in batch]
                ops = [write(path, content) for path, (_, content) in zip(paths, batch, strict=True)]
                for (answer, _), outcome in zip(batch, kept.files.batch(ops), strict=True):
                    answer.error = code(convert.op_error(outcome))
        return answers

    def download(self, paths: list[str]) -> list[FileDownloadResponse]:
        """The content of files."""
        answers = [FileDownloadResponse(path, None, None if results.is_path(path) else INVALID_PATH) for path in paths]
        wanted = [answer for answer in answers if answer.error is None]
        with self._keeper.use() as kept:
            while wanted:
                wanted = self._some(kept, wanted)
        return answers

    def _some(self, kept: Kept, wanted: list[FileDownloadResponse]) -> list[FileDownloadResponse]:
        """As many as one answer has room for. Gives the others."""
        inward = [kept.inward(answer.path) for answer in wanted[:ONE_BATCH]]
        ops = [files_pb2.FileOp(read=files_pb2.ReadOp(**path_fields(path), max_bytes=ONE_CALL)) for path in inward]
        outcomes = kept.files.batch(ops)
        for done, (answer, path, outcome) in enumerate(zip(wanted, inward, outcomes, strict=False)):
            if outcome.HasField("not_run"):
                return wanted[done:]
            answer.error = code(convert.op_error(outcome))
            if answer.error is None:
                try:
                    large = outcome.read.more_after
                    answer.content = kept.files.read_large(path) if large else outcome.read.content
                except results.ANSWERED as error:
                    answer.error = code(error)
        return wanted[ONE_BATCH:]


def write(path: str, content: bytes) -> files_pb2.FileOp:
    """One file."""
    return files_pb2.FileOp(write=files_pb2.WriteOp(**path_fields(path), content=content, make_parents=True))


def code(error: SandgateError | None) -> str | None:
    """What is said of one file. What an agent can do nothing about is raised."""
    if error is not None and not isinstance(error, results.ANSWERED):
        raise error
    return results.transfer_code(error) if error is not None else None


def batches(
    files: list[tuple[FileUploadResponse, bytes]],
) -> Iterator[list[tuple[FileUploadResponse, bytes]]]:
    """Files that fit into one call."""
    batch: list[tuple[FileUploadResponse, bytes]] = []
    size = 0
    for pair in files:
        if batch and (size + len(pair[1]) > ONE_CALL or len(batch) == ONE_BATCH):
            yield batch
            batch, size = [], 0
        batch.append(pair)
        size += len(pair[1])
    if batch:
        yield batch
