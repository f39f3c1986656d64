"""What a method costs in calls to the server, and what becomes of a command that is not waited for to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import CONFIG_KEY_RUNTIME  # pyright: ignore[reportMissingTypeStubs]
from place import TEMPLATE, Place, tools_server
from support import done, new_name, until

import sandgate
from sandgate import errors
from sandgate.deepagents import SandgateBackend

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


@pytest.fixture
def sandbox(place: Place) -> Iterator[sandgate.Sandbox]:
    with place.client() as client, client.create(new_name(), template=place.template, ttl=600) as sandbox:
        yield sandbox


@pytest.fixture
def streamed() -> Iterator[list[Any]]:
    """What is told to LangGraph's stream, as if a graph ran here."""
    events: list[Any] = []
    runtime = SimpleNamespace(stream_writer=events.append)
    token = var_child_runnable_config.set({"configurable": {CONFIG_KEY_RUNTIME: runtime}})
    yield events
    var_child_runnable_config.reset(token)


async def test_a_method_is_one_round_trip(sandbox: sandgate.Sandbox, kind: str, calls: list[str]) -> None:
    backend: Any = SandgateBackend(sandbox)
    large = "x" * (3 * MIB)
    many = [(f"/workspace/many/{number}", b"x") for number in range(1000)]
    for wanted, name, *arguments in (
        (["FileOps"], "write", "/workspace/a.txt", "one\r\ntwo\r\n"),
        (["FileOps"], "read", "/workspace/a.txt"),
        (["FileOps"], "read", "/workspace/a.txt", 1, 1),
        (["FileOps"], "edit", "/workspace/a.txt", "one\ntwo", "1\n2"),
        (["FileOps"], "ls", "/workspace"),
        (["FileOps"], "glob", "*.txt"),
        (["FileOps"], "grep", "2", "/workspace", "*.txt"),
        (["FileOps"], "upload_files", many),
        (["FileOps"], "download_files", [path for path, _ in many]),
        (["FileOps"], "delete", "/workspace/many"),
        # Above 1 MiB content goes by transfer.
        (["WriteChunk"], "write", "/workspace/large", large),
        (["WriteChunk"], "upload_files", [("/workspace/large", large.encode())]),
        (["FileOps", "Download"], "download_files", ["/workspace/large"]),
        # Once the middleware's directories are there.
        (["FileOps", "Run"], "execute", "true"),
        (["Run"], "execute", "true"),
    ):
        calls.clear()
        answer = await done(getattr(backend, name if kind == "sync" else f"a{name}")(*arguments))
        assert [call for call, last in zip(calls, [None, *calls], strict=False) if call != last] == wanted, name
        assert len(calls) == len(wanted) or wanted == ["WriteChunk"], name
        for one in answer if isinstance(answer, list) else [answer]:  # pyright: ignore[reportUnknownVariableType]
            assert getattr(one, "error", None) is None, name  # pyright: ignore[reportUnknownArgumentType]


@pytest.mark.parametrize("offload", [False, True])
async def test_a_cancelled_run_that_is_shown_kills_the_command(
    sandbox: sandgate.Sandbox, streamed: list[Any], offload: bool
) -> None:
    backend = SandgateBackend(sandbox)
    command = "echo on; sleep 600"
    if offload:
        running = backend.aexecute_with_offload(command, "/large_tool_results/x", max_inline_bytes=1)
    else:
        running = backend.aexecute(command)
    task = asyncio.ensure_future(running)
    while len(streamed) < 2:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event["type"] for event in streamed] == ["sandgate.started", "sandgate.output"]
    assert not sandbox.execs(only_alive=True)
    assert (await backend.aexecute("echo alive")).output == "alive\n"


async def test_a_sandbox_that_is_stopped_ends_its_commands(sandbox: sandgate.Sandbox, kind: str) -> None:
    backend: Any = SandgateBackend(sandbox)

    def stop() -> None:
        until(lambda: sandbox.files.exists("started"))
        sandbox.suspend(grace=0)

    thread = threading.Thread(target=stop)
    thread.start()
    command = "touch started; sleep 600"
    answer = await done(backend.execute(command) if kind == "sync" else backend.aexecute(command))
    thread.join()
    assert answer.exit_code in {128 + signal.SIGTERM, 128 + signal.SIGKILL, None}


async def test_a_sandbox_that_crashes_is_raised(kind: str, tmp_path: Path) -> None:
    with tools_server(tmp_path / "tools") as server, sandgate.Client(server.address) as client:
        backend: Any = SandgateBackend(client=client, template=TEMPLATE, ttl=600)
        command = f"touch started; sleep 600.{os.getpid()}; true"

        def crash() -> None:
            until(lambda: backend.sandbox().files.exists("started"))
            os.kill(runtime_of(command), signal.SIGKILL)

        backend.sandbox()
        thread = threading.Thread(target=crash)
        thread.start()
        with pytest.raises(errors.SandboxRestarted):
            await done(backend.execute(command) if kind == "sync" else backend.aexecute(command))
        thread.join()
        # Its files are there, and it goes on.
        again = backend.execute("ls") if kind == "sync" else backend.aexecute("ls")
        assert (await done(again)).output == "started\n"
        backend.close()


def runtime_of(command: str) -> int:
    """The process id of the runtime that runs a command, on this machine."""
    running = [int(path.name) for path in Path("/proc").glob("[0-9]*") if command.encode() in cmdline(path)]
    assert running
    pid = running[0]
    while not cmdline(Path(f"/proc/{pid}")).split(b"\0")[0].endswith(b"sandgate-runtime"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
    return pid


def cmdline(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
