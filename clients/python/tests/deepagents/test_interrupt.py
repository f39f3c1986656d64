"""Ctrl-C in a program that runs an agent, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from support import new_name, until

if TYPE_CHECKING:
    from pathlib import Path

    from place import Place

PROGRAM = """
import asyncio, sys
import sandgate
from sandgate.deepagents import SandgateBackend
from scripted import agent, thread

kind, address, token, name = sys.argv[1:]
backend = SandgateBackend(client=sandgate.Client(address, token=token or None), name=name)
graph = agent(backend, ("execute", {"command": "touch started; sleep 600"}))
what = {"messages": [("user", "go")]}, thread("t")
try:
    if kind == "direct":
        backend.execute("touch started; sleep 600")
    elif kind == "async":
        asyncio.run(graph.ainvoke(*what))
    else:
        graph.invoke(*what)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("kind", ["direct", "sync", "async"])
def test_it_kills_the_command_and_not_the_sandbox(kind: str, place: Place, tmp_path: Path) -> None:
    with place.client() as client, client.create(new_name(), template=place.template, ttl=600) as sandbox:
        arguments = [kind, place.address, place.token or "", sandbox.name]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", PROGRAM, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe) as process:
            try:
                until(lambda: sandbox.files.exists("started") or process.poll() is not None)
                process.send_signal(signal.SIGINT)
                said, wrong = process.communicate(timeout=60)
            finally:
                process.kill()
        assert said == b"interrupted\n", wrong.decode()
        assert not sandbox.execs(only_alive=True)
        assert sandbox.run("echo alive").stdout == "alive\n"
