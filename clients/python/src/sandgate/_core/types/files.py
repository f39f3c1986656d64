"""Files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime


class FileType(StrEnum):
    """What kind of thing a path is."""

    UNKNOWN = "unknown"
    REGULAR = "regular"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character_device"
    BLOCK_DEVICE = "block_device"


class WriteMode(StrEnum):
    """How a write treats what is there."""

    OVERWRITE = "overwrite"
    """Make or replace."""
    CREATE_ONLY = "create_only"
    """Fail if the path exists."""
    APPEND = "append"
    """Add at the end."""


class FileEventKind(StrEnum):
    """What happened to a file."""

    UNKNOWN = "unknown"
    WATCHING = "watching"
    """The watch is in place: what happens from now on is reported."""
    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"
    MOVED = "moved"
    OVERFLOW = "overflow"
    """Events were lost: list the directory again. The watch goes on."""
    ROOT_GONE = "root_gone"
    """The watched directory itself is gone. Nothing follows."""


@dataclass(frozen=True, slots=True, repr=False)
class FileInfo:
    """What the file system says of one path."""

    path: str
    type: FileType
    size: int
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    modified: datetime | None
    modified_ns: int
    """The same, exactly: nanoseconds since 1970."""
    symlink_target: str | None
    links: int
    inode: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2] or "/"

    @property
    def is_dir(self) -> bool:
        """It is a directory."""
        return self.type is FileType.DIRECTORY

    @property
    def is_file(self) -> bool:
        """It is a regular file."""
        return self.type is FileType.REGULAR

    def __repr__(self) -> str:
        return f"<FileInfo {self.path!r} {self.type} {self.mode:04o} {self.size} bytes>"


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a file that a write or an edit expects to replace: its SHA-256, or time of change and size."""

    sha256: bytes | None = None
    modified_ns: int | None = None
    size: int | None = None

    @staticmethod
    def of(info: FileInfo) -> Version:
        """By time of change and size: cheap, and blind to a change within the clock's resolution."""
        return Version(modified_ns=info.modified_ns, size=info.size)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """A part of a file."""

    content: bytes
    info: FileInfo
    offset: int
    """Where it begins, in bytes."""
    more_before: bool
    more_after: bool
    binary: bool
    """The file looks binary."""
    total_lines: int
    """Lines in the whole file; only counted for a window of lines."""
    first_line: int
    """First line of it, from 0, with a window of lines."""
    line_count: int
    """Lines in it, with a window of lines."""

    @property
    def text(self) -> str:
        """As text; what is not UTF-8 is U+FFFD."""
        return self.content.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class EditResult:
    """What an edit did."""

    replacements: int
    info: FileInfo


@dataclass(frozen=True, slots=True)
class GlobResult:
    """What a pattern matched, sorted by path."""

    entries: tuple[FileInfo, ...]
    truncated: bool
    directories_unreadable: int = 0
    """Directories that could not be looked into although something there could match."""

    @property
    def paths(self) -> list[str]:
        """Their paths."""
        return [entry.path for entry in self.entries]

    def __iter__(self) -> Iterator[FileInfo]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True)
class GrepLine:
    """One line."""

    number: int
    """From 1."""
    data: bytes
    """Without its end, at most 64 KiB of it."""
    context: bool = False
    """It is a context line and does not match."""

    @property
    def text(self) -> str:
        """As text; what is not UTF-8 is U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class GrepFile:
    """One file's matches."""

    path: str
    lines: tuple[GrepLine, ...]


@dataclass(frozen=True, slots=True)
class GrepResult:
    """What a search found, sorted by path."""

    files: tuple[GrepFile, ...]
    truncated: bool
    files_searched: int
    files_binary: int
    files_unreadable: int

    def __iter__(self) -> Iterator[tuple[str, GrepLine]]:
        """Every matching line with its path, without context."""
        return ((file.path, line) for file in self.files for line in file.lines if not line.context)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """What happened beneath a watched directory."""

    kind: FileEventKind
    path: str = ""
    """The path it happened to; of a move, the new one."""
    moved_from: str | None = None
    directory: bool = False


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What was sent."""

    entries: int
    bytes: int
