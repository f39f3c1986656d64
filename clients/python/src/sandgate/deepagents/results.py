"""Answers as deepagents words them: its result types, error codes, windows, caps and texts.

Fields that deepagents 0.7.6 does not have are set where they exist.
"""

from __future__ import annotations

import base64
import codecs
import dataclasses
import re
from typing import TYPE_CHECKING, Any, TypeVar

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    EditResult,
    FileData,
    GlobResult,
    GrepMatch,
    GrepResult,
    ReadResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG
from deepagents.backends.utils import EMPTY_CONTENT_WARNING

from .. import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deepagents.backends.protocol import FileInfo

    from .._core import types
    from .._core.errors import SandgateError
    from .places import Places

T = TypeVar("T")

ANSWERED = (
    errors.DiskFull,
    errors.EditAmbiguous,
    errors.EditNoMatch,
    errors.FileAlreadyExists,
    errors.FileDirectoryNotEmpty,
    errors.FileIo,
    errors.FileIsDirectory,
    errors.FileNotDirectory,
    errors.FileNotFound,
    errors.FileNotRegular,
    errors.FilePermissionDenied,
    errors.FileTooLarge,
    errors.InvalidArgument,
    errors.PathInvalid,
    errors.PathOutsideRoot,
    errors.PatternInvalid,
)
"""What is said to the agent, which can do something about it. Everything else is raised."""

PREFIX = 8192
"""What decides whether a file is text."""
EMPTY_OLD_STRING = "Error: old_string cannot be empty. Provide the exact text to replace."

_TRANSFER_CODES: dict[str, str] = {
    "FILE_NOT_FOUND": FILE_NOT_FOUND,
    "FILE_PERMISSION_DENIED": PERMISSION_DENIED,
    "FILE_IS_DIRECTORY": IS_DIRECTORY,
    "FILE_NOT_DIRECTORY": INVALID_PATH,
    "PATH_INVALID": INVALID_PATH,
    "PATH_OUTSIDE_ROOT": INVALID_PATH,
}
_FILE_CODES = _TRANSFER_CODES | {"FILE_IS_DIRECTORY": "not_a_file", "FILE_NOT_REGULAR": "not_a_file"}
_SEARCH_CODES = _TRANSFER_CODES | {
    "FILE_NOT_FOUND": "path_not_found",
    "FILE_NOT_DIRECTORY": "not_a_directory",
    "PATTERN_INVALID": "invalid_pattern",
}


# --- errors ---


def transfer_code(error: SandgateError) -> str:
    """What uploads and downloads say: one of deepagents' codes where one fits, else the words of the server."""
    return _TRANSFER_CODES.get(error.reason or "", error.message)


def file_error(path: str, error: SandgateError) -> str:
    """What `read` says."""
    return f"File '{path}': {_FILE_CODES.get(error.reason or '', error.message)}"


def search_error(path: str, error: SandgateError) -> str:
    """What `ls`, `glob` and `grep` say."""
    code = _SEARCH_CODES.get(error.reason or "", error.message)
    why = f" ({error.message})" if code == "invalid_pattern" else ""
    return f"Path '{path}': {code}{why}"


def edit_error(path: str, old: str, error: SandgateError) -> EditResult:
    """What `edit` says."""
    match error:
        case errors.FileNotFound():
            text = f"Error: File '{path}' not found"
        case errors.FilePermissionDenied():
            text = f"Error: Permission denied editing file '{path}'"
        case errors.FileIsDirectory() | errors.FileNotRegular():
            text = f"Error: '{path}' is not a regular file"
        case errors.EditNoMatch():
            text = f"Error: String not found in file: '{old}'"
        case errors.EditAmbiguous():
            text = f"Error: String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
        case _:
            text = f"Error editing file '{path}': {error.message}"
    return EditResult(error=text)


def sayable(*texts: str) -> None:
    """Raises what is answered for a text that has no bytes: models write half a surrogate pair now and then."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"{text[error.start]!a} at index {error.start}"
            raise errors.InvalidArgument(f"the text is not valid Unicode: half of a surrogate pair, {half}") from None


def is_path(path: str) -> bool:
    """Whether uploads and downloads take it: they want it absolute."""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return path.startswith("/")


# --- reading ---


def is_text(prefix: bytes) -> bool:
    """Whether a file that begins so is text. A character may be cut at the end."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(prefix)
    except UnicodeDecodeError:
        return False
    return True


def empty() -> ReadResult:
    """Of a file with nothing in it."""
    return ReadResult(file_data=FileData(content=EMPTY_CONTENT_WARNING, encoding="utf-8"))


def nothing_asked() -> ReadResult:
    """Of a window without lines."""
    return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)


def binary(path: str, part: types.ReadResult) -> ReadResult:
    """Of a file that is no text: all of it, or nothing."""
    if part.more_after or part.info.size > MAX_BINARY_BYTES:
        return ReadResult(error=f"File '{path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes")
    return ReadResult(file_data=FileData(content=base64.b64encode(part.content).decode(), encoding="base64"))


def page(path: str, part: types.ReadResult, offset: int, limit: int) -> ReadResult:
    """Of a window of lines. CRLF is shown as LF, as `edit` takes it, and what is not UTF-8 as U+FFFD."""
    lines, total = part.line_count, part.total_lines
    if lines == 0:
        return ReadResult(error=f"File '{path}': Line offset {offset} exceeds file length ({total} lines)")
    text = part.text.replace("\r\n", "\n").removesuffix("\n")
    data = text.encode()
    most = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())
    if len(data) > most:
        # The line that is cut is read again with the next page; unless it is the first, which would go on for ever.
        lines = max(1, data.count(b"\n", 0, most + 1))
        text = data[:most].decode("utf-8", "ignore") + TRUNCATION_MSG
    elif lines < min(limit, total - offset):
        text += TRUNCATION_MSG
    end = offset + lines
    return ReadResult(
        file_data=FileData(content=text, encoding="utf-8"),
        total_lines=total,
        start_line=offset + 1,
        end_line=end,
        next_offset=end if end < total else None,
    )


# --- finding ---


def listed(entries: Iterable[types.FileInfo], places: Places) -> list[FileInfo]:
    """Entries of a directory, or what a pattern matched."""
    return [_file_info(entry, places) for entry in entries]


def _file_info(entry: types.FileInfo, places: Places) -> FileInfo:
    info: FileInfo = {"path": places.outward(entry.path), "is_dir": entry.is_dir, "size": entry.size}
    if entry.modified is not None:
        info["modified_at"] = entry.modified.isoformat()
    return info


def lines_with(text: str) -> str:
    """The regular expression of lines that have a plain text; of several lines, as grep does it, any of them."""
    lines = [re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", line) for line in text.split("\n") if line]
    return "|".join(lines) or "^"


def globbed(found: types.GlobResult, entries: Iterable[types.FileInfo], places: Places) -> GlobResult:
    """What is given of what a pattern matched."""
    # A narrower pattern does not help with what can't be read, so that comes first.
    reason = "unreadable" if found.directories_unreadable else "budget" if found.truncated else None
    matches = listed(entries, places)
    return build(GlobResult, matches=matches, truncated=reason is not None, truncation_reason=reason)


def grepped(found: types.GrepResult, places: Places, max_count: int | None) -> GrepResult:
    """Lines that were found."""
    matches = [GrepMatch(path=places.outward(path), line=line.number, text=line.text) for path, line in found]
    truncated = found.truncated or (max_count is not None and len(matches) > max_count)
    return GrepResult(matches=matches[:max_count], truncated=truncated)


# --- of any version ---


def build(kind: type[T], **fields: Any) -> T:
    """A result, without the fields that this version of deepagents does not know."""
    known = {field.name for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]
    return kind(**{name: value for name, value in fields.items() if name in known})
