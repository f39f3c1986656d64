"""Where Sandgate's backend answers otherwise than deepagents' own sandbox does, on purpose.

Each has a row in docs/deepagents.md, which says why, and an example that shows it. All other answers must be the same.
"""

from __future__ import annotations

import base64
import glob
import os
import posixpath
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from deepagents.backends.sandbox import MAX_BINARY_BYTES
from trees import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from oracle import Entry

Answer = dict[str, Any]
"""What a method gave, as plain data."""

LOOK = Call("look", ())
"""Stands for what is in the tree at the end. Its answers have one entry each."""
ROOT = "ROOT"
"""Stands for its root, in examples."""


@dataclass(frozen=True)
class Difference:
    """One of them."""

    row: str
    """The first cell of its row."""
    covers: Callable[[Call, Answer, Answer], bool]
    """Whether it explains why theirs and ours differ."""
    entries: tuple[Entry, ...]
    """A tree,"""
    call: Call
    """and a call in it, that show it."""


def plain(answer: Any) -> Answer:
    """An answer as plain data.

    The order in which a file system gives its entries is nobody's promise, and `a/./b` is `a/b`, as we say it.
    """
    if isinstance(answer, list):
        return {"all": [asdict(one) for one in cast("list[Any]", answer)]}
    data: Answer = asdict(answer)
    for name in ("entries", "matches"):
        if data.get(name):
            for one in _found(data, name):
                one["path"] = posixpath.normpath(one["path"])
            data[name] = sorted(_found(data, name), key=lambda one: (one["path"], one.get("line", 0)))
    return data


def same(theirs: Answer, ours: Answer) -> bool:
    """Whether there is no difference. Which matches are the first ones is nobody's promise either."""
    if theirs.get("truncated") and ours.get("truncated") and theirs.get("matches"):
        return len(theirs["matches"]) == len(ours["matches"])
    return theirs == ours


def explain(call: Call, theirs: Answer, ours: Answer) -> Difference | None:
    """The difference that is behind two answers that are not the same."""
    return next((one for one in DIFFERENCES if one.covers(call, theirs, ours)), None)


# --- what they are ---


def _found(answer: Answer, key: str = "matches") -> list[Answer]:
    return answer.get(key) or []


def _error(answer: Answer) -> str:
    return answer.get("error") or ""


def _without(answer: Answer, key: str, *facts: str) -> list[Answer]:
    return [{name: fact for name, fact in one.items() if name not in facts} for one in _found(answer, key)]


def _more_facts(call: Call, theirs: Answer, ours: Answer) -> bool:
    key = {"ls": "entries", "glob": "matches"}.get(call.method, "")
    facts = ("size", "modified_at")
    bare = {**ours, key: _without(ours, key, *facts)}
    return bool(key) and bool(ours.get(key)) and theirs == bare and all(fact in ours[key][0] for fact in facts)


def _no_place(call: Call, theirs: Answer, ours: Answer) -> bool:
    nothing = not _error(theirs) and not theirs.get("matches") and not theirs.get("entries")
    if call.method not in {"grep", "ls"} or not nothing:
        return False
    path = call.arguments[1 if call.method == "grep" else 0]
    return re.fullmatch(f"Path '{re.escape(path)}': ({'|'.join(_obstacles(path))})", _error(ours)) is not None


def _obstacles(path: str) -> list[str]:
    """Why a path can't be searched. The tree of the oracle is at hand, and root sees all of it."""
    codes = ["none"]
    try:
        Path(path).stat()
    except FileNotFoundError:
        codes += ["path_not_found"]
    except OSError:
        codes += ["invalid_path", "not_a_directory"]
    ways = {*Path(path).parents, *real(path).parents, Path(path)}
    if any(way.stat().st_mode & 0o500 != 0o500 for way in ways if way.is_dir()):
        codes += ["permission_denied"]
    if Path(path).is_file() and not Path(path).stat().st_mode & 0o400:
        codes += ["permission_denied"]
    return codes


def real(path: str) -> Path:
    """Where a path leads, or how far it does if that is in a circle."""
    return Path(os.path.realpath(path))


def _broken_pattern(call: Call, theirs: Answer, ours: Answer) -> bool:
    return call.method in {"glob", "grep"} and ": invalid_pattern (" in _error(ours) and not theirs.get("matches")


def _raw_errors(_: Call, theirs: Answer, ours: Answer) -> bool:
    raw = ("Traceback", "rm: ", "internal_error", "exit code ")
    return any(word in _error(theirs) for word in raw) and _error(ours) != "" and "\n" not in _last(_error(ours))


def _last(text: str) -> str:
    """What is behind the path, which may have any characters."""
    return text.rpartition(": ")[2]


def _out_of_reach(call: Call, theirs: Answer, ours: Answer) -> bool:
    said = re.search(r": (permission_denied|invalid_path)$", _error(ours))
    return call.method == "delete" and _error(theirs).endswith("not found") and said is not None


def _lone_cr(call: Call, theirs: Answer, ours: Answer) -> bool:
    if call.method == "grep":
        # With a glob of paths they search by themselves, and not with `grep`.
        files = [{one["path"] for one in _found(answer)} for answer in (theirs, ours)]
        cut = theirs.get("truncated") or ours.get("truncated")
        lone = any(re.search(rb"\r(?!\n)", Path(path).read_bytes()) for path in files[1])
        return "/" in (call.arguments[2] or "") and lone and (files[0] == files[1] or bool(cut))
    beyond = "exceeds file length"
    more = not _error(theirs) or beyond in _error(theirs)
    fewer = (ours.get("total_lines") or 0) < (theirs.get("total_lines") or 0)
    data: Answer = ours.get("file_data") or {}
    kept = "\r" in data.get("content", "")
    return call.method == "read" and more and (kept or fewer or beyond in _error(ours))


def _crlf(call: Call, theirs: Answer, ours: Answer) -> bool:
    if call.method != "grep":
        return False
    bare = [one | {"text": one["text"].removesuffix("\r")} for one in _found(theirs)]
    return same({**theirs, "matches": bare}, ours)


def _broken_text(call: Call, theirs: Answer, ours: Answer) -> bool:
    if call.method == "grep":
        return _more_files(call, theirs, ours, _is_broken)
    return call.method == "read" and "UnicodeDecodeError" in _error(theirs) and not _error(ours)


def _utf16(call: Call, theirs: Answer, ours: Answer) -> bool:
    return call.method == "grep" and _more_files(call, theirs, ours, _has_mark)


def _has_mark(content: bytes) -> bool:
    return content[:2] in {b"\xff\xfe", b"\xfe\xff"}


def _is_broken(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return not _has_mark(content)
    return False


def _more_files(call: Call, theirs: Answer, ours: Answer, is_one: Callable[[bytes], bool]) -> bool:
    """We find more in such files than they do, and in those with a byte order mark. Else they are the same."""
    paths = {one["path"] for one in _found(ours)}
    more = {path for path in paths if _has_mark(content := Path(path).read_bytes()) or is_one(content)}
    if not any(is_one(Path(path).read_bytes()) for path in more):
        return False
    found = [{(one["path"], one["line"]) for one in _found(answer)} for answer in (theirs, ours)]
    left = [[one for one in _found(answer) if one["path"] not in more] for answer in (theirs, ours)]
    if ours.get("truncated"):
        return all((one["path"], one["line"]) in found[0] for one in left[1])
    theirs, without = theirs | {"matches": left[0]}, ours | {"matches": left[1]}
    return found[0] < found[1] and (same(theirs, without) or _crlf(call, theirs, without))


def _large_text(call: Call, theirs: Answer, ours: Answer) -> bool:
    return call.method == "read" and theirs | {"total_lines": ours.get("total_lines")} == ours


def _large_binary(call: Call, theirs: Answer, ours: Answer) -> bool:
    data: Answer = theirs.get("file_data") or {}
    large = len(data.get("content", "")) > MAX_BINARY_BYTES
    return call.method == "read" and large and "exceeds maximum preview size" in _error(ours)


def _leads_out(call: Call, theirs: Answer, ours: Answer) -> bool:
    if call.method != "glob" or _error(theirs):
        return False
    paths = [{one["path"] for one in _found(answer)} for answer in (theirs, ours)]
    inside = real(call.arguments[1])
    return paths[0] < paths[1] and not any(real(path).is_relative_to(inside) for path in paths[1] - paths[0])


def _shut_directory(call: Call, theirs: Answer, ours: Answer) -> bool:
    """They tell of any directory, and we of those where something could match, which are all for a mere name."""
    if theirs.get("truncation_reason") != "unreadable" or ours.get("truncated") or "/" not in call.arguments[0]:
        return False
    theirs = theirs | {"truncated": False, "truncation_reason": None}
    return same(theirs, ours) or _more_facts(call, theirs, ours) or _leads_out(call, theirs, ours)


def _through_links(call: Call, theirs: Answer, ours: Answer) -> bool:
    """With a glob of paths they follow symlinks, to files and to directories, by each that leads to a file."""
    pattern = call.arguments[2] or "" if call.method == "grep" else ""
    if "/" not in pattern or _error(theirs) or _error(ours):
        return False
    root = real(call.arguments[1])
    # As they do it; pathlib's is another.
    ways = [root / way for way in glob.glob(pattern.lstrip("/"), root_dir=root, recursive=True)]  # noqa: PTH207
    direct = {way for way in ways if real(str(way)) == way}
    left = {(one["path"], one["line"]): one for one in _found(theirs) if real(one["path"]) in direct}
    if len(left) == len(_found(theirs)):
        return False
    if theirs.get("truncated") or ours.get("truncated"):
        # Which are the first ones is nobody's promise.
        return bool(ours.get("truncated")) or left.keys() <= {(one["path"], one["line"]) for one in _found(ours)}
    theirs = theirs | {"matches": list(left.values())}
    return same(theirs, ours) or any(rule(call, theirs, ours) for rule in (_crlf, _lone_cr, _broken_text, _utf16))


def _new_crlf(call: Call, theirs: Answer, ours: Answer) -> bool:
    """Only the line ends of a file differ, and ours has but one kind of them."""
    if call != LOOK:
        return False
    a, b = (next(iter(one.values())) or [""] for one in (theirs, ours))
    if a[0] != "file" or b[0] != "file" or a[1] != b[1]:
        return False
    return a[3].replace("\r\n", "\n") == b[3].replace("\r\n", "\n") and "\r\n" in b[3]


def _one_file(call: Call, theirs: Answer, ours: Answer) -> bool:
    _, path, glob = call.arguments if call.method == "grep" else ("", "", None)
    return bool(glob) and not theirs.get("matches") and {one["path"] for one in _found(ours)} == {path}


def _odd_names(call: Call, theirs: Answer, ours: Answer) -> bool:
    """Their `grep` takes names by lines, and their `glob` a backslash for a slash: what it names is not there."""
    if call.method == "grep":
        left = {one["path"].rpartition("\n")[2] for one in _found(ours)}
        broken = any("\n" in one["path"] for one in _found(ours))
        return broken and all(one["path"].rpartition("\n")[2] in left for one in _found(theirs))
    good = [one for one in _found(theirs) if os.path.lexists(one["path"])]
    plain = [one for one in _found(ours) if "\\" not in one["path"]]
    if call.method != "glob" or (len(good), len(plain)) == (len(_found(theirs)), len(_found(ours))):
        return False
    theirs, ours = theirs | {"matches": good}, ours | {"matches": plain}
    return theirs == ours or any(rule(call, theirs, ours) for rule in (_more_facts, _leads_out, _shut_directory))


def _not_utf8(call: Call, theirs: Answer, ours: Answer) -> bool:
    refused = call.method == "edit" and _error(theirs).endswith("is not a text file")
    return refused and (not _error(ours) or re.match("Error: (String|Permission denied)", _error(ours)) is not None)


def _unreadable(call: Call, theirs: Answer, ours: Answer) -> bool:
    data: Answer = theirs.get("file_data") or {}
    empty = data.get("content", "").startswith("System reminder")
    return call.method == "read" and empty and _error(ours).endswith("permission_denied")


def _offloaded(call: Call, theirs: Answer, ours: Answer) -> bool:
    """An empty directory, or a file that others may read."""
    if call != LOOK:
        return False
    ((name, a),) = theirs.items()
    b = ours[name]
    if b is None:
        return name == "offloaded"
    return name.startswith("offloaded/") and b[:2] == ["file", "0o600"] and a[2:] == b[2:]


def file(path: str, content: bytes, mode: int = 0o644, times: int = 1) -> Entry:
    return ("file", path, f"{base64.b64encode(content).decode()}*{times}", mode)


def _grep(pattern: str, path: str = ROOT, glob: str | None = None) -> Call:
    return Call("grep", (pattern, path, glob))


DIFFERENCES = [
    Difference("What is known of a file", _more_facts, (file("a", b"x"),), Call("ls", (ROOT,))),
    Difference("A place that can't be searched", _no_place, (), _grep("x", f"{ROOT}/missing")),
    Difference("A broken pattern", _broken_pattern, (file("a", b"x"),), _grep("x", ROOT, "[")),
    Difference("The words of an error", _raw_errors, (file("a", b"x"),), Call("write", (f"{ROOT}/a/b", "x"))),
    Difference(
        "`delete` of what can't be reached",
        _out_of_reach,
        (("dir", "shut", "", 0o000), file("shut/a", b"x")),
        Call("delete", (f"{ROOT}/shut/a",)),
    ),
    Difference("A CR that ends no line", _lone_cr, (file("a", b"a\rb\n"),), Call("read", (f"{ROOT}/a", 0, 10))),
    Difference(
        "Bytes in a text that are none", _broken_text, (file("a", b"a\xc3"),), Call("read", (f"{ROOT}/a", 0, 10))
    ),
    Difference(
        "Lines of a large file",
        _large_text,
        (file("a", b"line\n", times=300_000),),
        Call("read", (f"{ROOT}/a", 0, 10)),
    ),
    Difference(
        "A large binary file", _large_binary, (file("a", b"\xff", times=600_000),), Call("read", (f"{ROOT}/a", 0, 10))
    ),
    Difference(
        "A symlink that leads out",
        _leads_out,
        (file("a", b"x"), ("dir", "in", "", 0o755), ("link", "in/b", "../a", 0)),
        Call("glob", ("*", f"{ROOT}/in")),
    ),
    Difference(
        "A symlink on the way",
        _through_links,
        (("dir", "real", "", 0o755), file("real/a", b"needle\n"), ("link", "other", "real", 0)),
        _grep("needle", ROOT, "other/*"),
    ),
    Difference("CRLF in `grep`", _crlf, (file("a", b"needle\r\n"),), _grep("needle")),
    Difference("A text in UTF-16", _utf16, (file("a", "\ufeffneedle\n".encode("utf-16-le")),), _grep("needle")),
    Difference(
        "An `edit` in a file with CRLF", _new_crlf, (file("a", b"a\r\n"),), Call("edit", (f"{ROOT}/a", "a", "b\nc"))
    ),
    Difference("`grep` of one file", _one_file, (file("a", b"needle\n"),), _grep("needle", f"{ROOT}/a", "*.py")),
    Difference("A line break or a backslash in a name", _odd_names, (file("a\nb", b"needle\n"),), _grep("needle")),
    Difference(
        "`edit` of what is not UTF-8",
        _not_utf8,
        (file("a", b"\xffneedle"),),
        Call("edit", (f"{ROOT}/a", "needle", "x")),
    ),
    Difference(
        "An unreadable file that is empty", _unreadable, (file("a", b"", 0o000),), Call("read", (f"{ROOT}/a", 0, 10))
    ),
    Difference(
        "What `execute_with_offload` leaves",
        _offloaded,
        (),
        Call("execute_with_offload", ("seq 1 2000", f"{ROOT}/offloaded/0"), (("max_inline_bytes", 1000),)),
    ),
    Difference(
        "An unreadable directory", _shut_directory, (("dir", "shut", "", 0o000),), Call("glob", ("open/*", ROOT))
    ),
]
