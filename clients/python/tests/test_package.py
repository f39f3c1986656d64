"""What a user gets: a server on demand, a wheel that works, pages whose examples run."""

from __future__ import annotations

import asyncio
import doctest
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import remove_cgroups, server_program, until

import sandgate
from sandgate import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support import Server

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs" / "python.md", ROOT / "clients" / "python" / "README.md"]


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory that is this machine's own to clients."""
    monkeypatch.setenv("SANDGATE_SERVER_BIN", str(server_program()))
    monkeypatch.setenv("SANDGATE_STATE_DIR", str(tmp_path / "state"))
    cgroup = f"sandgate-test-py-{os.getpid()}-local"
    monkeypatch.setenv("SANDGATE_CGROUP_PARENT", f"/{cgroup}")
    for name in ("SANDGATE_ADDR", "SANDGATE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "state"
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    remove_cgroups(cgroup)


def test_a_server_is_started_once(state_dir: Path) -> None:
    first = sandgate.Client.local()
    assert first.server is not None
    try:
        second = sandgate.Client.local()
        assert second.server is None
        assert first.address == second.address == sandgate.Client().address == f"unix://{state_dir}/sandgate.sock"

        async def third() -> None:
            async with await sandgate.AsyncClient.local() as client:
                assert client.server is None
                async with await client.create() as sandbox:
                    assert (await sandbox.run("echo hello")).stdout == "hello\n"

        asyncio.run(third())
        assert "listens on" in first.server.log.read_text()
        assert state_dir.stat().st_mode & 0o777 == 0o700
        first.close()
        second.close()
    finally:
        first.server.stop()


def test_a_server_that_does_not_start_says_why(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_LOG", "nonsense=nonsense")
    with pytest.raises(errors.ConfigError, match=r"ended at once.*64"):
        sandgate.Client.local()
    monkeypatch.setenv("SANDGATE_SERVER_BIN", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("HOME", "/nowhere")
    for name in ("CARGO_TARGET_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.ConfigError, match="SANDGATE_SERVER_BIN"):
        sandgate.Client.local()


def test_the_servers_log_has_the_request_of_an_error(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_LOG", "debug")
    client = sandgate.Client.local()
    assert client.server is not None
    log = client.server.log
    try:
        with client, client.create() as sandbox:
            files = sandbox.files
            wrong: list[Callable[[], object]] = [
                lambda: client.get("none-such"),
                lambda: files.read("none-such"),
                lambda: files.read_large("none-such"),
                lambda: sandbox.upload(b"", "/proc/none-such"),
                lambda: sandbox.download_tar("none-such", io.BytesIO()),
                lambda: sandbox.upload_tar(io.BytesIO(b"no tar" * 1000), "x"),
            ]
            for call in wrong:
                with pytest.raises(errors.SandgateError) as caught:
                    call()
                name = caught.value.request_id
                assert name is not None
                until(lambda name=name: name in log.read_text())
    finally:
        client.server.stop()
    assert state_dir.is_dir()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_ADDR", server.address)
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_examples_of_modules_run(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_ADDR", server.address)
    for module in (sandgate, errors):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0


def build(directory: Path, **env: str) -> Path:
    """A wheel, of a copy, so that nothing is built in the tree."""
    source = directory / "source"
    shutil.copytree(ROOT / "clients" / "python", source, ignore=shutil.ignore_patterns("__pycache__"))
    script = "import hatchling.build, sys; hatchling.build.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", script, directory]
    subprocess.run(command, cwd=source, env=os.environ | env, check=True, capture_output=True)
    return next(directory.glob("*.whl"))


def test_the_wheel_may_have_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("server", "runtime", "monitor"):
        (programs / f"sandgate-{name}").write_text("#!/bin/sh\n")
        (programs / f"sandgate-{name}").chmod(0o755)
    wheel = build(tmp_path, SANDGATE_WHEEL_BIN=str(programs))
    assert "-py3-none-linux" in wheel.name
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", wheel]
    subprocess.run(pip, check=True)
    find = "import sandgate._core.server as s; print(s.find_program({'PATH': '', 'HOME': '/none'}))"
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{':'.join(sys.path)}")
    said = subprocess.run([sys.executable, "-c", find], check=True, capture_output=True, text=True).stdout
    assert said.strip() == str(tmp_path / "site" / "sandgate" / "_bin" / "sandgate-server")


def test_the_wheel_works_in_a_fresh_environment(server: Server, tmp_path: Path) -> None:
    wheel = build(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert {"sandgate/py.typed", "sandgate/v1/exec_pb2.pyi", "sandgate/_gen/sync/client.py"} <= set(names)
    assert not [name for name in names if name.startswith("tests/")]
    (facts,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    assert "Requires-Dist: deepagents<0.8,>=0.7.6; extra == 'deepagents'" in zipfile.ZipFile(wheel).read(facts).decode()

    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    pins = ["-c", ROOT / "clients" / "python" / "requirements.txt"]
    subprocess.run([*pip, *pins, wheel], check=True)
    quick = PAGES[1].read_text().split("```python", 1)[1].split("```", 1)[0]
    script = "\n".join(line[4:] for line in quick.splitlines() if line.startswith((">>> ", "... ")))
    env = {"SANDGATE_ADDR": server.address, "PATH": os.environ["PATH"]}
    said = subprocess.run(
        [home / "bin" / "python", "-I", "-c", script], env=env, check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    assert "hello from a sandbox" in said
    bare = subprocess.run(
        [home / "bin" / "python", "-I", "-c", "import sandgate.deepagents"], check=False, capture_output=True, text=True
    )
    assert "ImportError: sandgate.deepagents needs deepagents: pip install 'sandgate[deepagents]'" in bare.stderr
