"""One client for many: threads, tasks, event loops, forks."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from support import new_name

import sandgate

if TYPE_CHECKING:
    from support import Server

MANY = 64


def test_threads_share_a_client(sync_sandbox: sandgate.Sandbox) -> None:
    barrier = threading.Barrier(MANY)

    def work(number: int) -> None:
        barrier.wait()
        texts: list[str] = []
        result = sync_sandbox.run(f"echo {number}; cat", input=f"in {number}", on_stdout=texts.append)
        assert "".join(texts) == result.stdout == f"{number}\nin {number}"
        path = f"threads/{number}"
        sync_sandbox.files.write(path, str(number))
        assert sync_sandbox.download(path) == str(number).encode()

    with ThreadPoolExecutor(MANY) as pool:
        assert list(pool.map(work, range(MANY))) == [None] * MANY
    assert len(sync_sandbox.files.list("threads")) == MANY


async def test_tasks_share_a_client(server: Server) -> None:
    async with sandgate.AsyncClient(server.address) as client, await client.create(new_name()) as sandbox:

        async def work(number: int) -> None:
            texts: list[str] = []
            result = await sandbox.run(f"echo {number}; cat", input=f"in {number}", on_stdout=texts.append)
            assert "".join(texts) == result.stdout == f"{number}\nin {number}"
            path = f"tasks/{number}"
            await sandbox.files.write(path, str(number))
            assert await sandbox.download(path) == str(number).encode()

        await asyncio.gather(*(work(number) for number in range(MANY)))
        assert len(await sandbox.files.list("tasks")) == MANY


def test_event_loops_share_a_client(server: Server) -> None:
    client = sandgate.AsyncClient(server.address)

    async def work() -> list[str]:
        async with await client.create() as sandbox:
            return [(await sandbox.run("echo hello")).stdout for _ in range(3)]

    for _ in range(3):
        assert asyncio.run(work()) == ["hello\n"] * 3
    asyncio.run(client.close())


def test_event_loops_in_threads_share_a_client(server: Server) -> None:
    client = sandgate.AsyncClient(server.address)

    async def work() -> str:
        async with await client.create() as sandbox:
            results = await asyncio.gather(*(sandbox.run(f"echo {number}") for number in range(8)))
            return "".join(result.stdout.strip() for result in results)

    with ThreadPoolExecutor(4) as pool:
        working = [pool.submit(asyncio.run, work()) for _ in range(4)]
        assert [future.result() for future in working] == ["01234567"] * 4


def test_a_fork_is_warned_of(server: Server) -> None:
    with sandgate.Client(server.address) as client:
        client.list()
        read, write = os.pipe()
        with warnings.catch_warnings():
            # Python's own, of threads and forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                client.list()
                client.list()
            os.write(write, "; ".join(str(warning.message) for warning in caught).encode())
            os._exit(0)
        os.close(write)
        assert os.waitpid(pid, 0)[1] == 0
        with os.fdopen(read) as said:
            assert said.read().count("os.fork()") == 1
        # The parent's connection is none the worse.
        client.list()


def test_a_closed_client_ends_what_waits(sync_sandbox: sandgate.Sandbox, server: Server) -> None:
    client = sandgate.Client(server.address)
    exec = client.sandbox(sync_sandbox.name).exec("sleep 1000")
    timer = threading.Timer(0.3, client.close)
    timer.start()
    with pytest.raises(sandgate.errors.ClosedError):
        exec.wait()
    timer.join()
    assert sync_sandbox.signal_exec(exec.id, 9) > 0
