"""Random trees of files, and calls about what is in them and what is not."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oracle import Entry

KIB = 1024

# Each broke something somewhere: words of a shell, of globs, of JSON, of `ls`.
ODD_NAMES = [
    "plain.py",
    "two words.txt",
    "-rf",
    "--include=x",
    "new\nline.txt",
    "tab\there",
    "ümläut.md",
    "u\u0308mla\u0308ut.md",
    "日本語",
    "🦀.rs",
    ".hidden",
    ".git",
    "it's",
    'say "hi"',
    "$HOME",
    "`id`",
    "*",
    "?",
    "[ab].py",
    "{a,b}.py",
    "a.py",
    "b.py",
    "back\\slash",
    "trailing ",
    "colon:1:x",
    "photo.png",
    "film.mkv",
    "percent%s",
]


def _legal(name: str) -> bool:
    return name not in {".", ".."} and "/" not in name and "\0" not in name and len(name.encode()) <= 60


def names() -> st.SearchStrategy[str]:
    anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=6)
    return st.one_of(st.sampled_from(ODD_NAMES), anything.filter(_legal))


WORDS = ["needle", "hay", "", "é", "nee dle", "\t", "needle needle", "日本"]


def _joined(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8))
    ending = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"]))
    text = ending.join(lines) + draw(st.sampled_from(["", ending]))
    return text.encode()


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    return _joined(draw)


def _told(*parts: tuple[bytes, int]) -> str:
    return ",".join(f"{base64.b64encode(content).decode()}*{times}" for content, times in parts)


HUGE = [
    _told((b"0123456789abcde\n", 40 * KIB)),  # more than one page, and more than the cap of a page
    _told((b"needle ", 80 * KIB)),  # one line that is larger than the cap
    _told(("é\n".encode(), 600 * KIB)),  # more than lines are counted in
    _told((b"ok\n", 4000), (b"\xff\xfe needle\n", 1)),  # not UTF-8, but behind what is looked at
]
SMALL = [
    b"",
    b"\n",
    b"\0",
    b"needle\0needle\n",
    b"\xff\xfe\x00binary",
    b"\xef\xbb\xbfbom\n",
    b"a\rb\r\nc\nd",
    b"\x89PNG\r\n\x1a\n",
]


def contents() -> st.SearchStrategy[str]:
    small = st.one_of(texts(), texts(), texts(), st.sampled_from(SMALL), st.binary(max_size=40))
    return st.one_of(*[small.map(lambda content: _told((content, 1)))] * 4, st.sampled_from(HUGE))


@st.composite
def trees(draw: st.DrawFn) -> list[Entry]:
    """What to make, parents first."""
    entries: list[Entry] = []
    taken: set[str] = set()
    dirs = [""]
    for _ in range(draw(st.integers(3, 9))):
        path = draw(st.sampled_from(dirs)) + draw(names())
        if path in taken:
            continue
        taken.add(path)
        kind = draw(st.sampled_from(["file", "file", "file", "dir", "link"]))
        if kind == "dir":
            dirs.append(path + "/")
            entries.append(("dir", path, "", draw(st.sampled_from([0o755, 0o755, 0o755, 0o000, 0o555, 0o711]))))
        elif kind == "link":
            inside = [entry[1] for entry in entries] or ["missing"]
            targets = st.sampled_from([*inside, "missing", "..", ".", path.rsplit("/", 1)[-1]])
            entries.append(("link", path, draw(targets), 0))
        else:
            entries.append(
                ("file", path, draw(contents()), draw(st.sampled_from([0o644, 0o644, 0o644, 0o000, 0o444, 0o755])))
            )
    return entries


@dataclass(frozen=True)
class Call:
    """A method of a backend, with what it gets."""

    method: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def on(self, backend: Any) -> Any:
        return getattr(backend, self.method)(*self.arguments, **dict(self.options))

    async def on_async(self, backend: Any) -> Any:
        return await getattr(backend, "a" + self.method)(*self.arguments, **dict(self.options))


GLOBS = [
    "*",
    "**",
    "*.py",
    "**/*.py",
    "*.txt",
    ".*",
    "**/.*",
    "[ab].py",
    "[!a].py",
    "[^a].py",
    "{a,b}.py",
    "?.py",
    "/*.py",
    "*/*",
    "**/*",
    "a.py/**",
    "../*",
    "missing",
    "**/",
    "*\\*",
    "[",
    "needle*",
]
PATTERNS = ["needle", "e", "é", "nee dle", "", "-e", "a\nb", "0123", "日本", "NEEDLE", "^n"]
EDITS = ["needle", "hay\n", "hay\nneedle", "\r\n", "absent", "", "é", "a", "0123456789abcde"]


@st.composite
def calls(draw: st.DrawFn, root: str, entries: Sequence[Entry]) -> Call:
    """One call. Paths are mostly of what is there."""
    known = [f"{root}/{entry[1]}" for entry in entries]
    odd = [root, f"{root}/missing", f"{root}/missing/too", f"{root}/plain.py/below", f"{root}/", f"{root}/./plain.py"]
    path = draw(st.sampled_from(known * 2 + odd) if known else st.sampled_from(odd))
    text = draw(texts()).decode()
    match draw(
        st.sampled_from(
            [
                "ls",
                "read",
                "read",
                "write",
                "edit",
                "edit",
                "grep",
                "grep",
                "glob",
                "glob",
                "delete",
                "upload",
                "download",
            ]
        )
    ):
        case "ls":
            return Call("ls", (path,))
        case "read":
            bounds = draw(
                st.tuples(st.sampled_from([0, 0, 1, 3, 50, -1]), st.sampled_from([2000, 2000, 1, 2, 0, -1, 100_000]))
            )
            return Call("read", (path, *bounds))
        case "write":
            return Call("write", (draw(st.sampled_from([path, f"{path}/new", f"{root}/sub/new.txt"])), text))
        case "edit":
            old = draw(st.sampled_from(EDITS))
            return Call("edit", (path, old, draw(st.sampled_from(["new", "", "two\nlines"])), draw(st.booleans())))
        case "grep":
            glob = draw(st.one_of(st.none(), st.none(), st.sampled_from(GLOBS)))
            most = draw(st.sampled_from([None, None, 1, 3]))
            return Call("grep", (draw(st.sampled_from(PATTERNS)), path, glob), (("max_count", most),))
        case "glob":
            return Call("glob", (draw(st.sampled_from(GLOBS)), path))
        case "delete":
            # Both sides stand in the root.
            return Call("delete", (path if path.rstrip("/") != root else f"{root}/missing",))
        case "upload":
            return Call("upload_files", ([(path, text.encode()), (f"{root}/made/by/upload", b"\xff\0")],))
        case _:
            return Call("download_files", ([path, root, f"{root}/missing"],))


@st.composite
def cases(draw: st.DrawFn, root: str) -> tuple[list[Entry], list[Call]]:
    """A tree, and what happens to it."""
    entries = draw(trees())
    return entries, draw(st.lists(calls(root, entries), min_size=6, max_size=12))
