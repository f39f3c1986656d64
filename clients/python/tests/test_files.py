"""Files in a sandbox, by both clients."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import pytest
from support import Within, done, each

from sandgate import FileEventKind, FileType, Version, WriteMode, errors, op_error
from sandgate.v1 import files_pb2


async def test_content_is_written_and_read(sandbox: Any) -> None:
    files = sandbox.files
    info = await done(files.write("a/b.txt", "one\ntwo\nthree\n"))
    assert (info.path, info.type, info.size, info.mode) == ("/workspace/a/b.txt", FileType.REGULAR, 14, 0o644)
    assert info.name == "b.txt"
    assert await done(files.read("a/b.txt")) == b"one\ntwo\nthree\n"
    assert await done(files.read_text(PurePosixPath("/workspace/a/b.txt"))) == "one\ntwo\nthree\n"
    lines = await done(files.read_lines("a/b.txt", 1, 1))
    assert (lines.text, lines.total_lines, lines.first_line, lines.line_count) == ("two\n", 3, 1, 1)
    assert lines.more_before
    assert lines.more_after
    window = await done(files.read_bytes("a/b.txt", 4, 3))
    assert (window.content, window.offset, window.binary) == (b"two", 4, False)
    await done(files.write("a/b.txt", b"\x00", write_mode=WriteMode.APPEND))
    assert (await done(files.read("a/b.txt")))[-1:] == b"\x00"
    with pytest.raises(FileExistsError):
        await done(files.write("a/b.txt", "", write_mode="create_only"))
    with pytest.raises(errors.FileNotFound):
        await done(files.write("none/x", "", parents=False))
    assert (await done(files.write("run.sh", "", mode=0o755))).mode == 0o755


async def test_large_content_goes_too(sandbox: Any) -> None:
    content = bytes(range(256)) * 20_000
    info = await done(sandbox.files.write("large", content, mode=0o600))
    assert (info.size, info.mode) == (len(content), 0o600)
    assert await done(sandbox.files.read("large")) == content
    assert await done(sandbox.files.hash("large")) == hashlib.sha256(content).digest()


async def test_an_edit_is_exact(sandbox: Any) -> None:
    files = sandbox.files
    info = await done(files.write("x", "a b a"))
    assert (await done(files.edit("x", "b", "c"))).replacements == 1
    with pytest.raises(errors.EditAmbiguous) as caught:
        await done(files.edit("x", "a", "z"))
    assert caught.value.metadata["count"] == "2"
    assert caught.value.path == "/workspace/x"
    assert (await done(files.edit("x", "a", "z", replace_all=True))).replacements == 2
    with pytest.raises(errors.EditNoMatch):
        await done(files.edit("x", "nowhere", ""))
    with pytest.raises(errors.FileVersionMismatch):
        await done(files.write("x", "", expected=Version.of(info)))
    current = Version(sha256=hashlib.sha256(b"z c z").digest())
    assert (await done(files.edit("x", "c", "d", expected=current))).info.size == 5


async def test_paths_are_found(sandbox: Any) -> None:
    files = sandbox.files
    for path in ("src/a.py", "src/deep/b.py", "src/.hidden.py", "notes.txt"):
        await done(files.write(path, f"# {path}\nneedle here\nother\n"))
    assert [info.name for info in await done(files.list())] == ["notes.txt", "src"]
    assert [info.path for info in await done(files.list("src", depth=2))] == [
        "/workspace/src/.hidden.py",
        "/workspace/src/a.py",
        "/workspace/src/deep",
        "/workspace/src/deep/b.py",
    ]
    found = await done(files.glob("**/*.py"))
    assert found.paths == ["/workspace/src/a.py", "/workspace/src/deep/b.py"]
    assert len(await done(files.glob("**/*.py", include_hidden=True))) == 3
    assert (await done(files.glob("**/*.py", limit=1))).truncated
    directories = await done(files.glob("*", "src", include_directories=True))
    assert [info.path for info in directories if info.is_dir] == ["/workspace/src/deep"]

    matches = await done(files.grep("NEEDLE", "src", ignore_case=True, skip_hidden=True))
    assert [(path, line.number, line.text) for path, line in matches] == [
        ("/workspace/src/a.py", 2, "needle here"),
        ("/workspace/src/deep/b.py", 2, "needle here"),
    ]
    around = await done(files.grep("needle", include=["a.py"], context=1))
    assert [line.context for line in around.files[0].lines] == [True, False, True]
    assert len(await done(files.grep("n.*e", max_total=1))) == 1
    assert len(await done(files.grep("n.*e", literal=True))) == 0
    assert len(await done(files.grep("needle", exclude=["*.py"]))) == 1
    with pytest.raises(errors.PatternInvalid):
        await done(files.grep("("))


async def test_many_entries_come_in_pages(sandbox: Any) -> None:
    await done(sandbox.run("mkdir many && cd many && seq 2500 | xargs touch", check=True))
    assert len(await done(sandbox.files.list("many"))) == 2500


async def test_things_are_moved_copied_and_removed(sandbox: Any) -> None:
    files = sandbox.files
    await done(files.mkdir("d/e", mode=0o700))
    await done(files.touch("d/e/f", datetime(2001, 2, 3, tzinfo=UTC)))
    assert (await done(files.stat("d/e/f"))).modified == datetime(2001, 2, 3, tzinfo=UTC)
    assert (await done(files.stat("d/e"))).mode == 0o700
    with pytest.raises(IsADirectoryError):
        await done(files.copy("d", "d2"))
    await done(files.copy("d", "d2", recursive=True))
    assert (await done(files.move("d2/e/f", "g/h", parents=True))).path == "/workspace/g/h"
    with pytest.raises(errors.FileAlreadyExists):
        await done(files.move("d/e/f", "g/h"))
    await done(files.move("d/e/f", "g/h", overwrite=True))
    assert (await done(files.chmod("g/h", 0o640))).mode == 0o640
    with pytest.raises(errors.FileDirectoryNotEmpty):
        await done(files.remove("g"))
    assert await done(files.remove("g", recursive=True)) == 2
    with pytest.raises(FileNotFoundError):
        await done(files.remove("g"))
    assert await done(files.remove("g", missing_ok=True)) == 0
    assert not await done(files.exists("g"))
    await done(files.symlink("link", "d"))
    assert await done(files.readlink("link")) == "d"
    assert (await done(files.stat("link"))).is_dir
    link = await done(files.stat("link", follow=False))
    assert (link.type, link.symlink_target) == (FileType.SYMLINK, "d")
    with pytest.raises(NotADirectoryError):
        await done(files.list("/etc/passwd"))
    with pytest.raises(errors.FileAlreadyExists):
        await done(files.mkdir("d", parents=False))


@pytest.mark.parametrize("name", [b"\xff\xfe", "sp ace\n\t", "-dash", "ümläut 🎉", b"x".decode() * 255])
async def test_any_name_is_a_name(sandbox: Any, name: str | bytes) -> None:
    await done(sandbox.files.write(name, "content"))
    listed = (await done(sandbox.files.list()))[0]
    assert await done(sandbox.files.read(listed.path)) == b"content"
    assert await done(sandbox.download(listed.path)) == b"content"
    raw = name if isinstance(name, bytes) else name.encode()
    assert listed.name.encode("utf-8", "surrogateescape") == raw
    assert await done(sandbox.files.remove(name)) == 1


async def test_a_view_has_its_own_root_and_user(sandbox: Any) -> None:
    view = sandbox.files.view("/workspace/inner", user="0")
    await done(sandbox.files.mkdir("inner"))
    assert (await done(view.write("/x", "1"))).path == "/x"
    assert (await done(sandbox.files.stat("inner/x"))).uid == 0
    with pytest.raises(errors.FileNotFound):
        await done(view.read("/../../etc/passwd"))
    with pytest.raises(PermissionError):
        await done(sandbox.files.write("/etc/x", ""))
    with pytest.raises(errors.UserNotFound):
        await done(sandbox.files.view(user="nobody-such").list("/"))


async def test_a_batch_has_an_outcome_for_each(sandbox: Any) -> None:
    ops = [
        files_pb2.FileOp(write=files_pb2.WriteOp(path="a", content=b"1")),
        files_pb2.FileOp(read=files_pb2.ReadOp(path="none")),
        files_pb2.FileOp(read=files_pb2.ReadOp(path="a")),
    ]
    results = await done(sandbox.files.batch(ops))
    assert [type(op_error(result)).__name__ for result in results] == ["NoneType", "FileNotFound", "NoneType"]
    assert results[2].read.content == b"1"
    results = await done(sandbox.files.batch(ops, stop_on_error=True))
    assert "not run" in str(op_error(results[2]))


async def test_changes_are_told(sandbox: Any) -> None:
    await done(sandbox.files.mkdir("watched"))
    seen: list[tuple[FileEventKind, str]] = []
    async with Within(sandbox.files.watch("watched", recursive=True)) as watch:
        async for event in each(watch):
            seen.append((event.kind, event.path))
            if event.kind is FileEventKind.WATCHING:
                await done(
                    sandbox.run("cd watched; mkdir d; echo x > d/f; mv d/f g; rm g; cd ..; rmdir watched/d watched")
                )
            elif event.kind is FileEventKind.MOVED:
                assert event.moved_from == "/workspace/watched/d/f"
    assert (FileEventKind.CREATED, "/workspace/watched/d") in seen
    assert (FileEventKind.DELETED, "/workspace/watched/g") in seen
    assert seen[-1][0] is FileEventKind.ROOT_GONE
