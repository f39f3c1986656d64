"""In a real kernel of Jupyter: an event loop runs in its main thread all the time, and output must come live."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
from jupyter_client.manager import KernelManager
from support import new_name, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support import Server

    import sandgate


class Notebook:
    """Cells, run one after the other."""

    def __init__(self, manager: KernelManager) -> None:
        self._manager = manager
        self._client: Any = manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)

    def run(self, cell: str, on_text: Callable[[str], object] = len) -> tuple[str, str]:
        """What a cell printed, and what it shows in the end, or the name of its error."""
        printed, shown = "", ""
        request = self._client.execute(cell)
        while True:
            message = self._client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    printed += content["text"]
                    on_text(printed)
                case "execute_result":
                    shown = content["data"]["text/plain"]
                case "error":
                    shown = content["ename"]
                case "status" if content["execution_state"] == "idle":
                    return printed, shown
                case _:
                    pass

    def interrupt(self) -> None:
        """The button with the square."""
        self._manager.interrupt_kernel()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, cwd=str(tmp_path))
    notebook = Notebook(manager)
    yield notebook
    notebook.close()


def test_both_clients_work_in_cells(notebook: Notebook, server: Server) -> None:
    name = new_name()
    _, shown = notebook.run(f"import sandgate\nclient = sandgate.Client({server.address!r})\nclient.create({name!r})")
    assert shown.startswith(f"<Sandbox '{name}' ready; ")
    _, shown = notebook.run(
        f"other = sandgate.AsyncClient({server.address!r})\nsandbox = await other.attach({name!r})\nsandbox"
    )
    assert shown.startswith(f"<AsyncSandbox '{name}' ready; ")
    both = "import asyncio\nlen(await asyncio.gather(sandbox.run('true'), sandbox.run('true')))"
    assert notebook.run(both) == ("", "2")
    assert notebook.run("client.sandbox(sandbox.name).run('echo plain').stdout") == ("", "'plain\\n'")
    assert notebook.run("(await sandbox.delete()).existed") == ("", "True")


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_output_comes_while_a_cell_runs(
    kind: str, notebook: Notebook, server: Server, sync_sandbox: sandgate.Sandbox
) -> None:
    """The command goes on when its output was seen, so the cell would never end if that came at the end."""

    def seen(printed: str) -> None:
        if printed == "first\n":
            sync_sandbox.files.write("seen", "")

    wait = "await " if kind == "AsyncClient" else ""
    cell = f"""
import sandgate
sandbox = {wait}sandgate.{kind}({server.address!r}).attach({sync_sandbox.name!r})
script = "echo first; until [ -e seen ]; do sleep 0.05; done; echo last"
{wait}sandbox.run(script, on_stdout=lambda text: print(text, end=""))
"""
    printed, shown = notebook.run(cell, seen)
    assert (printed, shown) == ("first\nlast\n", "<RunResult exit 0, stdout 'first\\nlast\\n', stderr ''>")


@pytest.mark.parametrize("kind", ["Client", "AsyncClient"])
def test_an_interrupted_cell_kills_its_command(
    kind: str, notebook: Notebook, server: Server, sync_sandbox: sandgate.Sandbox
) -> None:
    """A kernel notices an interrupt when its loop wakes up next, so the command says something now and then.

    With ipykernel 7.4 that is so for `asyncio.sleep` as well: the handler adds a callback in a way that wakes nobody.
    """
    wait = "await " if kind == "AsyncClient" else ""
    cell = f"""
import sandgate
sandbox = {wait}sandgate.{kind}({server.address!r}).attach({sync_sandbox.name!r})
print("ready", flush=True)
{wait}sandbox.run("while :; do echo; sleep 0.1; done", on_stdout=len)
"""

    def interrupt(_: str) -> None:
        until(lambda: bool(sync_sandbox.execs(only_alive=True)))
        notebook.interrupt()

    _, shown = notebook.run(cell, interrupt)
    assert shown in {"KeyboardInterrupt", "CancelledError"}
    assert not sync_sandbox.execs(only_alive=True)
    # The kernel is none the worse.
    again = f"({wait}sandbox.run('echo alive')).stdout"
    assert notebook.run(again) == ("", "'alive\\n'")
