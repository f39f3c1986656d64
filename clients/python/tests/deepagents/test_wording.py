"""Texts, caps and previews are deepagents' own, and what it did not have in 0.7.6 is left out there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from deepagents.backends import protocol, utils
from deepagents.backends import sandbox as theirs
from plain import Plain
from support import new_name

from sandgate._core import types
from sandgate.deepagents import SandgateBackend, backend, output, results
from sandgate.deepagents.places import Places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from place import Place

    import sandgate


@pytest.fixture(scope="module")
def held(place: Place) -> Iterator[sandgate.Sandbox]:
    with place.client() as client, client.create(new_name(), template=place.template, ttl=600) as sandbox:
        yield sandbox


def test_constants_are_those_of_deepagents() -> None:
    assert results.EMPTY_OLD_STRING == utils.EMPTY_OLD_STRING_ERROR
    assert output.MARKER == utils.TRUNCATION_MARKER_TEMPLATE
    for ours, name in (
        (output.LINES, "_EXECUTE_CAPTURE_HEAD_LINES"),
        (output.LINES, "_EXECUTE_CAPTURE_TAIL_LINES"),
        (output.BYTES, "_EXECUTE_CAPTURE_HEAD_BYTES"),
        (output.BYTES, "_EXECUTE_CAPTURE_TAIL_BYTES"),
        (output.CLIP_NOTICE, "_EXECUTE_CAPTURE_CLIP_NOTICE"),
        (output.CAPPED_NOTICE, "_EXECUTE_CAPTURE_CLIP_NOTICE_CAPPED"),
        (output.EXCERPT_NOTICE, "_EXECUTE_CAPTURE_EXCERPT_CLIP_NOTICE"),
    ):
        assert ours == getattr(theirs, name), name
    assert backend.GREP_SECONDS == protocol.ASYNC_GREP_TIMEOUT
    assert backend.GLOB_SECONDS == protocol.ASYNC_GLOB_TIMEOUT
    assert SandgateBackend.grep_exclude_dirs == theirs.BaseSandbox.grep_exclude_dirs


@pytest.mark.parametrize(
    "command",
    [
        "echo small",
        "true",
        "printf 'no newline'",
        "seq 2000",
        "seq 2000; exit 7",
        "seq 2000 | tr '\\n' ' '",
        "seq 11; head -c 3000 /dev/zero | tr '\\0' x; echo; seq 1000",
        "seq 1000; head -c 3000 /dev/zero | tr '\\0' x",
        "seq 9; head -c 3000 /dev/zero | tr '\\0' x",
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do head -c 900 /dev/zero | tr '\\0' $i; echo; done",
        "seq 300 | sed 's/$/\\r/'",
    ],
)
def test_previews_are_those_of_deepagents(command: str, held: sandgate.Sandbox) -> None:
    plain = Plain(held)
    plain.enable_capture_offload = True
    paths = "/tmp/theirs", "/large_tool_results/ours"
    wanted, got = (
        backend.execute_with_offload(command, path, max_inline_bytes=1000)
        for backend, path in zip((plain, SandgateBackend(held)), paths, strict=True)
    )
    assert got == wanted
    assert held.files.exists(paths[1]) == wanted.offloaded
    if wanted.offloaded:
        assert held.files.read(paths[1]) == held.files.read(paths[0])
        held.files.remove(paths[1])


def test_a_file_that_is_cut_is_told_as_deepagents_tells_it(held: sandgate.Sandbox) -> None:
    plain, ours = Plain(held), SandgateBackend(held)
    plain.enable_capture_offload = True
    paths = "/tmp/theirs", "/large_tool_results/capped"
    # Of one long line the beginning is shown.
    command = "seq 20000 | tr '\\n' ' '; exit 3"
    wanted, got = (
        backend.execute_with_offload(command, path, max_inline_bytes=1000, max_capture_bytes=9000)
        for backend, path in zip((plain, ours), paths, strict=True)
    )
    assert got == wanted
    assert got.response.truncated
    assert [held.files.stat(path).size for path in paths] == [9000, 9000]
    assert held.files.read(paths[1]) == held.files.read(paths[0])
    # Of many its ends. Ours is the end of the output, and theirs that of the file.
    got = ours.execute_with_offload("seq 20000", paths[1], max_inline_bytes=1000, max_capture_bytes=9000)
    assert (got.offloaded, got.response.truncated, got.preview_has_truncation_marker) == (True, True, True)
    assert got.response.output.endswith("[19990 lines truncated] ...\n19996\n19997\n19998\n19999\n20000\n")
    assert held.files.stat(paths[1]).size == 9000


def test_a_page_is_cut_where_deepagents_cuts_it(held: sandgate.Sandbox) -> None:
    plain, ours = Plain(held), SandgateBackend(held)
    for name, content in {
        "many": "".join(f"{number}\n" for number in range(200_000)),
        "long": "é" * 400_000 + "\nlast",
        "crlf": "x" * 300 + "\r\n" + "y\r\n" * 300_000,
        "second": "short\n" + "é" * 300_000 + "\nlast\n",
    }.items():
        path = f"/tmp/pages/{name}"
        assert ours.write(path, content).error is None
        for offset, limit in ((0, 2000), (0, 1_000_000), (1, 1), (1, 1_000_000)):
            wanted, got = (backend.read(path, offset, limit) for backend in (plain, ours))
            # We know how many lines a large file has.
            assert got.total_lines == len(content.splitlines())
            assert dataclasses.replace(got, total_lines=wanted.total_lines) == wanted, (name, offset, limit)


def test_fields_that_an_older_deepagents_lacks_are_left_out() -> None:
    """As in 0.7.6."""

    @dataclasses.dataclass
    class GlobResult:
        error: str | None = None
        matches: list[Any] | None = None
        truncated: bool = False

    @dataclasses.dataclass(frozen=True, slots=True)
    class ExecuteOffloadResult:
        offloaded: bool
        response: protocol.ExecuteResponse

    answer = protocol.ExecuteResponse("x", 0)
    assert results.build(GlobResult, matches=[], truncated=True, truncation_reason="budget") == GlobResult(
        None, [], True
    )
    built = results.build(ExecuteOffloadResult, offloaded=True, response=answer, preview_has_truncation_marker=True)
    assert built == ExecuteOffloadResult(True, answer)


@pytest.mark.parametrize(
    "found, truncated, reason",
    [
        (types.GlobResult((), False), False, None),
        (types.GlobResult((), True), True, "budget"),
        (types.GlobResult((), False, 1), True, "unreadable"),
        (types.GlobResult((), True, 1), True, "unreadable"),
    ],
)
def test_why_a_glob_is_incomplete_is_said(found: types.GlobResult, truncated: bool, reason: str | None) -> None:
    answer = results.globbed(found, found.entries, Places())
    assert (answer.matches, answer.truncated, answer.truncation_reason) == ([], truncated, reason)


def test_plain_text_stays_plain() -> None:
    assert results.lines_with("a.b(c)|[d]{e}^$*+?\\") == r"a\.b\(c\)\|\[d\]\{e\}\^\$\*\+\?\\"
    assert results.lines_with("one\ntwo\n") == "one|two"
    assert results.lines_with("") == "^"


def test_what_is_known_of_an_end_is_said() -> None:
    def said(exit: types.Exit) -> protocol.ExecuteResponse:
        stream = types.StreamOutput(head=b"some", total_bytes=4)
        return output.response(types.RunResult("id", exit, None, stream, types.StreamOutput()), "/p", None)

    assert said(types.Exit(signal=9, out_of_memory=2)).output == (
        "some\n[2 of its processes were killed, because the sandbox ran out of memory]\n"
    )
    assert said(types.Exit(lost=True)).exit_code is None
    assert "not known" in said(types.Exit(lost=True)).output
    failure = types.StartFailure(types.StartFailureReason.BAD_CWD, "no such directory")
    result = types.RunResult("id", None, failure, types.StreamOutput(), types.StreamOutput())
    assert output.response(result, "/p", None) == protocol.ExecuteResponse("Error: no such directory\n", 126)
