"""Files of an agent. Each method is one round trip of file operations, and never a command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from deepagents.backends.protocol import (
    DeleteResult,
    EditResult,
    GlobResult,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES
from deepagents.backends.utils import (
    _get_backend_read_file_type as file_type,  # pyright: ignore[reportPrivateUsage]
)
from deepagents.backends.utils import normalize_read_bounds

from ..._core import convert, types
from ..._core.values import path_fields
from ..._gen.reasons import EditNoMatch, FileNotFound
from ...deepagents import results
from ...v1 import files_pb2

if TYPE_CHECKING:
    from ..._async.files import AsyncFiles
    from .keeper import AsyncKeeper

MOST_ENTRIES = 10_000
MOST_LINES = 100_000
ONE_BATCH = 1_000
# What one call carries; more goes by transfer.
ONE_CALL = 1 << 20


class AsyncFileTools:
    """What deepagents asks of a backend's files."""

    def __init__(self, keeper: AsyncKeeper) -> None:
        self._keeper = keeper

    async def ls(self, path: str) -> LsResult:
        """Entries of a directory, sorted. Symlinks are not followed."""
        async with self._keeper.use() as kept:
            try:
                entries = await kept.files.list(await kept.inward(path))
            except results.ANSWERED as error:
                return LsResult(error=results.search_error(path, error))
            return LsResult(entries=results.listed(entries, kept.places))

    async def read(self, path: str, offset: int, limit: int) -> ReadResult:
        """A window of lines of a text, or all of another file as base64."""
        offset, limit = normalize_read_bounds(offset, limit)
        async with self._keeper.use() as kept:
            try:
                where = path_fields(await kept.inward(path))
            except results.ANSWERED as error:
                return ReadResult(error=results.file_error(path, error))
            whole = files_pb2.FileOp(read=files_pb2.ReadOp(**where, max_bytes=MAX_BINARY_BYTES))
            begin = files_pb2.FileOp(read=files_pb2.ReadOp(**where, max_bytes=results.PREFIX))
            window = files_pb2.LineWindow(first=offset, count=limit)
            lines = files_pb2.FileOp(read=files_pb2.ReadOp(**where, lines=window, max_bytes=ONE_CALL))
            try:
                text = file_type(path) == "text"
                parts = await several(kept.files, [begin, lines] if text and limit else [begin if text else whole])
                if not parts[0].content:
                    return results.empty()
                if text and not results.is_text(parts[0].content):
                    text, parts = False, await several(kept.files, [whole])
            except results.ANSWERED as error:
                return ReadResult(error=results.file_error(path, error))
            if not text:
                return results.binary(path, parts[0])
            return results.page(path, parts[1], offset, limit) if limit else results.nothing_asked()

    async def write(self, path: str, content: str) -> WriteResult:
        """Makes or replaces a file, and the directories above it."""
        async with self._keeper.use() as kept:
            try:
                results.sayable(content)
                await kept.files.write(await kept.inward(path), content)
            except results.ANSWERED as error:
                return WriteResult(error=f"Failed to write file '{path}': {results.transfer_code(error)}")
            return WriteResult(path=path)

    async def edit(self, path: str, old: str, new: str, *, replace_all: bool) -> EditResult:
        """Replaces an exact text, and keeps line ends."""
        if not old:
            return EditResult(error=results.EMPTY_OLD_STRING)
        if len(old) + len(new) > ONE_CALL:
            return EditResult(error=f"Error editing file '{path}': the texts are too long; write the file instead")
        async with self._keeper.use() as kept:
            try:
                results.sayable(old, new)
                inward = await kept.inward(path)
                try:
                    done = await kept.files.edit(inward, old, new, replace_all=replace_all)
                except EditNoMatch:
                    # The server tries CRLF for LF, and not the other way round.
                    if "\r\n" not in old:
                        raise
                    lf = [text.replace("\r\n", "\n") for text in (old, new)]
                    done = await kept.files.edit(inward, lf[0], lf[1], replace_all=replace_all)
            except results.ANSWERED as error:
                return results.edit_error(path, old, error)
            return EditResult(path=path, occurrences=done.replacements)

    async def delete(self, path: str) -> DeleteResult:
        """Removes a file, a symlink, or a tree."""
        async with self._keeper.use() as kept:
            try:
                await kept.files.remove(await kept.inward(path), recursive=True)
            except FileNotFound:
                return DeleteResult(error=f"Error: '{path}' not found")
            except results.ANSWERED as error:
                return DeleteResult(error=f"Error deleting file '{path}': {results.transfer_code(error)}")
            return DeleteResult(path=path)

    async def glob(self, pattern: str, path: str | None) -> GlobResult:
        """Regular files by pattern: one without a slash is for names at any depth, others for paths."""
        async with self._keeper.use() as kept:
            names = "/" not in pattern
            # Hidden directories are searched for names, yet hidden names are only given when they are asked for.
            hidden = not names or re.search(r"(^|[{,])\.", pattern) is not None
            try:
                results.sayable(pattern)
                found = await kept.files.glob(
                    f"**/{pattern}" if names else pattern,
                    await kept.inward(kept.places.start(path)),
                    include_hidden=names,
                    limit=MOST_ENTRIES,
                )
                entries = [entry for entry in found if hidden or not entry.name.startswith(".")]
                entries = await regular(kept.files, entries)
            except results.ANSWERED as error:
                return GlobResult(error=results.search_error(path or ".", error))
            return results.globbed(found, entries, kept.places)

    async def grep(
        self, pattern: str, path: str | None, glob: str | None, max_count: int | None, exclude: tuple[str, ...]
    ) -> GrepResult:
        """Lines with a plain text. Binary files are left out."""
        async with self._keeper.use() as kept:
            segments = (glob or "").split("/")
            try:
                results.sayable(pattern, glob or "")
                where = await kept.inward(kept.places.start(path))
                if ".." in segments:
                    if (await kept.files.stat(where)).is_dir:
                        return GrepResult(error=f"Path '{path or '.'}': invalid_pattern (a glob can't hold `..`)")
                    glob = None  # One file is searched whatever the glob.
                found = await kept.files.grep(
                    results.lines_with(pattern),
                    where,
                    # One that ends in a slash is for directories, and the server takes it for names of files as well.
                    include=[f"{glob}." if glob.endswith("/") else glob] if glob else [],
                    # What is in these directories, and not files of these names: `.git` may be one.
                    exclude=[f"**/{name}/**" for name in exclude],
                    # A glob of paths does not mean hidden ones unless it says so.
                    skip_hidden=len(segments) > 1 and not any(segment.startswith(".") for segment in segments),
                    max_total=min(MOST_LINES if max_count is None else max(max_count, 1), MOST_LINES),
                )
            except results.ANSWERED as error:
                return GrepResult(error=results.search_error(path or ".", error))
            return results.grepped(found, kept.places, max_count)


async def regular(files: AsyncFiles, entries: list[types.FileInfo]) -> list[types.FileInfo]:
    """Those that are regular files, or symlinks to one."""
    links = [entry for entry in entries if entry.type is types.FileType.SYMLINK]
    ops = [files_pb2.FileOp(stat=files_pb2.StatOp(**path_fields(link.path), follow=True)) for link in links]
    good: set[str] = set()
    for begin in range(0, len(ops), ONE_BATCH):
        for link, result in zip(links[begin:], await files.batch(ops[begin : begin + ONE_BATCH]), strict=False):
            if convert.op_error(result) is None and convert.file_info(result.info).is_file:
                good.add(link.path)
    return [entry for entry in entries if entry.is_file or entry.path in good]


async def several(files: AsyncFiles, ops: list[files_pb2.FileOp]) -> list[types.ReadResult]:
    """What reads of one file give."""
    outcomes = await files.batch(ops, stop_on_error=True)
    for outcome in outcomes:
        error = convert.op_error(outcome)
        if error is not None:
            raise error
    return [convert.read_result(outcome.read) for outcome in outcomes]
