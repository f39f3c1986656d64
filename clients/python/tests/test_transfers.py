"""Files in and out of a sandbox, by both clients."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import done

import sandgate
from sandgate import errors
from sandgate._core import local_files

if TYPE_CHECKING:
    from support import Server

CONTENT = bytes(range(256)) * 15_000


class Progress:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int | None]] = []

    def __call__(self, now: int, total: int | None) -> None:
        self.calls.append((now, total))


async def test_a_file_goes_in_and_out(sandbox: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(CONTENT)
    source.chmod(0o750)
    sent, got = Progress(), Progress()
    result = await done(sandbox.upload(source, "by/path", progress=sent))
    assert (result.entries, result.bytes) == (1, len(CONTENT))
    assert sent.calls[-1] == (len(CONTENT), len(CONTENT))
    assert (await done(sandbox.files.stat("by/path"))).mode == 0o750
    await done(sandbox.upload(str(source), "by/name", mode=0o600))
    assert (await done(sandbox.files.stat("by/name"))).mode == 0o600
    await done(sandbox.upload(CONTENT, "by/bytes"))
    await done(sandbox.upload(b"", "by/nothing"))
    await done(sandbox.upload(memoryview(CONTENT)[: 1 << 20], "by/chunk"))
    with source.open("rb") as file:
        file.seek(10)
        await done(sandbox.upload(file, "by/file"))
    hashes = [await done(sandbox.files.hash(f"by/{name}")) for name in ("path", "name", "bytes")]
    assert set(hashes) == {hashlib.sha256(CONTENT).digest()}
    assert (await done(sandbox.files.stat("by/chunk"))).size == 1 << 20

    assert await done(sandbox.download("by/path", progress=got)) == CONTENT
    assert got.calls[-1] == (len(CONTENT), len(CONTENT))
    assert await done(sandbox.download("by/nothing")) == b""
    assert (await done(sandbox.download("by/file", target))).bytes == len(CONTENT) - 10
    assert target.read_bytes() == CONTENT[10:]
    buffer = io.BytesIO()
    await done(sandbox.download("by/path", buffer))
    assert buffer.getvalue() == CONTENT


async def test_what_fails_leaves_no_trace(sandbox: Any, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    with pytest.raises(FileNotFoundError):
        await done(sandbox.download("none", target))
    with pytest.raises(errors.FileIsDirectory):
        await done(sandbox.download("/etc"))
    with pytest.raises(errors.FileIsDirectory):
        await done(sandbox.download("/etc", io.BytesIO()))
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert target.read_text() == "old"
    with pytest.raises(errors.FilePermissionDenied):
        await done(sandbox.upload(b"x", "/etc/x"))
    with pytest.raises(FileNotFoundError):
        await done(sandbox.upload(tmp_path / "none", "x"))
    with pytest.raises(TypeError):
        await done(sandbox.upload(io.StringIO("text"), "x"))
    assert await done(sandbox.files.list()) == []


async def test_a_tree_goes_in_and_out(sandbox: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (source / "deep" / "run.sh").chmod(0o755)
    (source / ("long" * 40)).write_bytes(CONTENT)
    (source / os.fsdecode(b"raw\xff")).write_text("raw")
    (source / "link").symlink_to("deep/run.sh")
    os.mkfifo(source / "fifo")
    seen = Progress()
    result = await done(sandbox.upload(source, "tree", progress=seen))
    assert (result.entries, result.bytes) == (6, len(CONTENT) + 13)
    assert seen.calls[-1][0] > len(CONTENT)
    assert (await done(sandbox.run("tree/link && cat tree/raw*; stat -c %a tree/deep/run.sh"))).stdout == "raw755\n"

    result = await done(sandbox.download("tree", target))
    assert result.bytes == len(CONTENT) + 13
    got = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    wanted = sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.name != "fifo")
    assert got == wanted
    assert (target / "link").readlink() == Path("deep/run.sh")
    assert (target / "deep" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (target / ("long" * 40)).read_bytes() == CONTENT

    tar = io.BytesIO()
    await done(sandbox.download_tar("tree/deep", tar))
    tar.seek(0)
    with tarfile.open(fileobj=tar) as archive:
        assert "workspace/tree/deep/run.sh" in archive.getnames()
    tar.seek(0)
    assert (await done(sandbox.upload_tar(tar, "again"))).entries >= 2
    assert await done(sandbox.files.exists("again/workspace/tree/deep/run.sh"))
    with pytest.raises(errors.ArchiveInvalid):
        await done(sandbox.upload_tar(io.BytesIO(b"no tar" * 1000), "again"))


async def test_links_out_of_the_tree_are_told_and_not_made(sandbox: Any, tmp_path: Path) -> None:
    await done(sandbox.run("mkdir t; cd t; ln -s /etc/passwd out; ln -s ../x up; echo ok > file; mkfifo pipe"))
    with pytest.raises(errors.TransferFailed) as caught:
        await done(sandbox.download("t", tmp_path / "t"))
    assert [failure.path for failure in caught.value.failures] == ["out", "up"]
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["file"]


def hostile(*members: tuple[str, bytes, str | bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if isinstance(content, str):
                info.linkname = content
                tar.addfile(info)
            else:
                info.size = len(content)
                info.mode = 0o6755
                tar.addfile(info, io.BytesIO(content))
    buffer.seek(0)
    return buffer


def test_a_hostile_tar_writes_nothing_elsewhere(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / "existing").symlink_to(outside)
    tar = hostile(
        ("../outside/a", tarfile.REGTYPE, b"x"),
        ("/outside/b", tarfile.REGTYPE, b"x"),
        ("existing/c", tarfile.REGTYPE, b"x"),
        ("here", tarfile.SYMTYPE, "."),
        ("here/../../outside/d", tarfile.REGTYPE, b"x"),
        ("deep/twice", tarfile.SYMTYPE, "a/../../.."),
        ("hard", tarfile.LNKTYPE, "existing"),
        ("device", tarfile.CHRTYPE, ""),
        ("good", tarfile.REGTYPE, b"good"),
    )
    with pytest.raises(errors.TransferFailed) as caught:
        local_files.unpack(lambda: tar.read(100), inside, None)
    assert caught.value.total == 7
    assert list(outside.iterdir()) == []
    assert (inside / "good").read_text() == "good"
    # Neither who runs it nor whose it is comes from an archive.
    assert (inside / "good").stat().st_mode & 0o7777 == 0o755


def test_a_damaged_tar_is_told(tmp_path: Path) -> None:
    whole = hostile(("a", tarfile.REGTYPE, b"x" * 5000)).getvalue()
    for cut in (whole[:3000], b"", b"\x01" * 2000):
        stream = io.BytesIO(cut)
        with pytest.raises(errors.ArchiveInvalid):
            local_files.unpack(lambda stream=stream: stream.read(100), tmp_path / "x", None)
    giant = tarfile.TarInfo("pax")
    giant.type, giant.size = tarfile.XHDTYPE, 1 << 32
    stream = io.BytesIO(giant.tobuf() + bytes(4 << 20))
    with pytest.raises(errors.ArchiveInvalid, match="too large"):
        local_files.unpack(lambda: stream.read(64 << 10), tmp_path / "x", None)


MEMORY = """
import asyncio, hashlib, os, resource, sys
import sandgate
kind, address, name, path = sys.argv[1:]
SIZE = 200 << 20

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

def sync():
    sandbox = sandgate.Client(address).attach(name)
    sandbox.upload(b"warm" * 1000000, "warm"); sandbox.download("warm")
    before = peak()
    sandbox.upload(path, "large")
    sandbox.download("large", path + ".back")
    return peak() - before

async def asynchronous():
    async with sandgate.AsyncClient(address) as client:
        sandbox = await client.attach(name)
        await sandbox.upload(b"warm" * 1000000, "warm"); await sandbox.download("warm")
        before = peak()
        await sandbox.upload(path, "large")
        await sandbox.download("large", path + ".back")
        return peak() - before

grown = sync() if kind == "sync" else asyncio.run(asynchronous())
assert os.path.getsize(path + ".back") == SIZE
assert grown < 40 << 20, f"{grown >> 20} MiB"
"""


def test_memory_stays_flat(server: Server, sync_sandbox: sandgate.Sandbox, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(os.urandom(1 << 20))
    command = [sys.executable, "-c", MEMORY, kind, server.address, sync_sandbox.name, str(path)]
    subprocess.run(command, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    digest = sha256(path)
    assert sha256(Path(f"{path}.back")) == digest
    assert sync_sandbox.files.hash("large") == digest


def sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
