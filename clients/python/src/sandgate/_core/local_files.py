"""The side of this machine in a transfer: what is read to be sent, and what comes is written.

What comes from a sandbox is not trusted. Names are taken beneath the destination: an absolute one or one with `..`
fails the entry. Directories on the way are opened one by one and no symlink is followed, whoever made it, so nothing is
written elsewhere. Symlinks that lead out of the destination are not made. Set-id bits, owners, devices and hard links
are not taken over. A file appears whole, by renaming.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar, cast

from .._gen.reasons import ArchiveInvalid
from ..v1 import sandbox_service_pb2 as service
from . import types
from .errors import SandgateError, TransferFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

T = TypeVar("T")

Source = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO
"""What can be sent: content, a path of this machine (also as `str`), or an open binary file."""
Chunks = BinaryIO | Path
"""A tar: as an open file, or to be made from a directory."""

CHUNK = 64 << 10
BLOCK = tarfile.BLOCKSIZE
# What names and attributes of one entry may take in memory.
MAX_HEADER = 1 << 20
MAX_FAILURES = 1000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


# --- sending ---


@contextlib.contextmanager
def open_source(source: Source) -> Generator[tuple[BinaryIO, int | None, int | None]]:
    """An open file, its size if that is known, and its permission bits if it has some."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield io.BytesIO(source), len(source), None
    elif isinstance(source, (str, os.PathLike)):
        with Path(source).open("rb") as file:
            status = os.fstat(file.fileno())
            yield file, status.st_size, stat.S_IMODE(status.st_mode) & 0o777
    else:
        yield source, None, None


def read_full(file: BinaryIO, size: int) -> bytes:
    """As many bytes as there are, at most `size`: less only at the end."""
    data = file.read(size)
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("a file to be sent must be opened in binary mode")
    if len(data) == size or not data:
        return data
    parts = [data]
    left = size - len(data)
    while left and (data := file.read(left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def messages(
    start: service.UploadRequest, chunks: Chunks, progress: Callable[[int, int | None], object] | None
) -> Iterator[service.UploadRequest]:
    """The messages of an upload of a tar."""
    yield start
    sent = 0
    for chunk in _even(pack(chunks) if isinstance(chunks, Path) else _read_all(chunks)):
        yield service.UploadRequest(chunk=chunk)
        sent += len(chunk)
        if progress is not None:
            progress(sent, None)


def pack(root: Path) -> Iterator[bytes]:
    """A directory as a tar, piece by piece. Sockets, FIFOs and devices are left out."""
    for path in _walk(root):
        status = path.lstat()
        info = tarfile.TarInfo(str(path.relative_to(root)))
        info.mode = stat.S_IMODE(status.st_mode) & 0o777
        info.mtime = status.st_mtime_ns // 1_000_000_000
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            yield _header(info)
        elif stat.S_ISLNK(status.st_mode):
            info.type = tarfile.SYMTYPE
            info.linkname = str(path.readlink())
            yield _header(info)
        elif stat.S_ISREG(status.st_mode):
            yield from _file(path, info)
    yield bytes(2 * BLOCK)


def _walk(root: Path) -> Iterator[Path]:
    with os.scandir(root) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _file(path: Path, info: tarfile.TarInfo) -> Iterator[bytes]:
    with path.open("rb") as file:
        info.size = os.fstat(file.fileno()).st_size
        yield _header(info)
        left = info.size
        while left:
            data = file.read(min(left, CHUNK))
            if not data:
                raise OSError(f"{path} became shorter while it was read")
            left -= len(data)
            yield data
    if rest := info.size % BLOCK:
        yield bytes(BLOCK - rest)


def _read_all(file: BinaryIO) -> Iterator[bytes]:
    while data := read_full(file, CHUNK):
        yield data


def _even(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in chunks of a good size."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= CHUNK:
            yield bytes(buffer[:CHUNK])
            del buffer[:CHUNK]
    if buffer:
        yield bytes(buffer)


# --- receiving ---


@contextlib.contextmanager
def replacing(path: Path) -> Generator[tuple[BinaryIO, Callable[[], None]]]:
    """A file beside the path, and what puts it in its place. Without that it is removed, and the old one stays."""
    beside = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:

            def commit() -> None:
                file.flush()
                beside.replace(path)

            yield cast("BinaryIO", file), commit
    finally:
        beside.unlink(missing_ok=True)


def unpack(
    pull: Callable[[], bytes], destination: Path, progress: Callable[[int, int | None], object] | None
) -> types.TransferResult:
    """Unpacks a tar into a directory, which is made if it is missing."""
    destination.mkdir(parents=True, exist_ok=True)
    reader = _Reader(pull)
    file = cast("BinaryIO", reader)
    with _Unpacking(destination) as unpacking:
        try:
            # A tar of a stream: nothing is sought.
            with reader.metered(lambda: tarfile.open(fileobj=file, mode="r|", errors="surrogateescape")) as tar:
                while (member := reader.metered(tar.next)) is not None:
                    unpacking.entry(tar, member)
                    # It would keep all it has seen.
                    cast("Any", tar).members.clear()
                    if progress is not None:
                        progress(unpacking.bytes, None)
        except tarfile.TarError as error:
            raise ArchiveInvalid(f"the archive is damaged: {error}") from error
        unpacking.finish()
    if unpacking.failed:
        raise TransferFailed(
            f"{unpacking.failed} of the entries could not be made: {unpacking.failures[0]}",
            failures=unpacking.failures,
            total=unpacking.failed,
        )
    return types.TransferResult(unpacking.entries, unpacking.bytes)


class _Reader:
    """What a stream gives, as a file. Bounds what is read for a header."""

    def __init__(self, pull: Callable[[], bytes]) -> None:
        self._pull = pull
        self._buffer = b""
        self._left: int | None = None

    def read(self, size: int) -> bytes:
        if not self._buffer:
            self._buffer = self._pull()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise tarfile.ReadError("a header is too large")
        return data

    def metered(self, read_header: Callable[[], T]) -> T:
        self._left = MAX_HEADER
        try:
            return read_header()
        finally:
            self._left = None


class _Unpacking:
    """Entries beneath a directory. Every step of a path is opened without following symlinks."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._modes: list[tuple[list[str], int]] = []
        self.entries = 0
        self.bytes = 0
        self.failed = 0
        self.failures: list[SandgateError] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def entry(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        try:
            self._entry(tar, member)
            self.entries += 1
        except OSError as error:
            self.failed += 1
            if len(self.failures) < MAX_FAILURES:
                message = f"{member.name}: {error.strerror or error}"
                self.failures.append(SandgateError(message, metadata={"path": member.name}))

    def finish(self) -> None:
        """Permission bits of directories come last: they may forbid writing. The deepest first."""
        for parts, mode in reversed(self._modes):
            with contextlib.suppress(OSError), self._directory(parts) as directory:
                os.fchmod(directory, mode)

    def _entry(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        mode = member.mode & 0o777
        if member.isdir():
            with self._directory(parts):
                self._modes.append((parts, mode))
            return
        if not parts:
            raise OSError("it has no name")
        with self._directory(parts[:-1]) as parent:
            if member.issym():
                _check_link(parts, member.linkname)
                _replace(parent, parts[-1], lambda name: os.symlink(member.linkname, name, dir_fd=parent))
            elif member.isreg():
                content = tar.extractfile(member)
                _replace(parent, parts[-1], lambda name: self._write(parent, name, mode, content))
                os.utime(parts[-1], (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)
            else:
                raise OSError("it is neither a file, nor a directory, nor a symlink")

    def _write(self, parent: int, name: str, mode: int, content: object) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
            while data := cast("BinaryIO", content).read(CHUNK):
                file.write(data)
                self.bytes += len(data)
            os.fchmod(file.fileno(), mode)

    @contextlib.contextmanager
    def _directory(self, parts: list[str]) -> Generator[int]:
        current = os.dup(self._root)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=current)
                following = os.open(part, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = following
            yield current
        finally:
            os.close(current)


def _parts(name: str) -> list[str]:
    if name.startswith("/"):
        raise OSError("its path is absolute")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise OSError("its path leads out of the destination")
    return parts


def _check_link(parts: list[str], target: str) -> None:
    """A symlink must lead to something inside, whatever other such links there are.

    Its own directory is no link, so leading `..` are what they look like. Behind a name they need not be, because that
    may be a link.
    """
    depth = len(parts) - 1
    inside = bool(target) and not target.startswith("/")
    named = False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            inside = inside and not named and depth >= 0
        elif part not in {"", "."}:
            named = True
    if not inside:
        raise OSError(f"the symlink leads out of the destination: {target}")


def _replace(parent: int, name: str, make: Callable[[str], None]) -> None:
    beside = f".{name[:200]}.{secrets.token_hex(4)}.part"
    try:
        make(beside)
        os.rename(beside, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=parent)
        raise
