"""One client for many: threads, tasks, event loops, forks."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import grpc
import grpc.aio
import pytest
from support import new_name

import sandgate

if TYPE_CHECKING:
    from collections.abc import Callable

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


# Each of two goes on when the client has seen what the other wrote.
ROUNDS = 20
IN_STEP = f"""
for i in $(seq {ROUNDS}); do
    head -c 100000 /dev/zero; echo
    until [ -e $OTHER-$i ]; do sleep 0.01; done
done
"""
PAIR = [("one", "other"), ("other", "one")]


def test_streams_of_two_threads_come_at_the_same_time(sync_sandbox: sandgate.Sandbox) -> None:
    def follow(names: tuple[str, str]) -> int:
        seen = 0
        for event in sync_sandbox.exec(IN_STEP, env={"OTHER": names[1]}):
            for _ in range(event.data.count(b"\n") if isinstance(event, sandgate.Output) else 0):
                seen += 1
                sync_sandbox.files.write(f"{names[0]}-{seen}", "")
        return seen

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(follow, PAIR)) == [ROUNDS, ROUNDS]


async def test_streams_of_two_tasks_come_at_the_same_time(async_sandbox: Any) -> None:
    async def follow(names: tuple[str, str]) -> int:
        seen = 0
        async for event in await async_sandbox.exec(IN_STEP, env={"OTHER": names[1]}):
            for _ in range(event.data.count(b"\n") if isinstance(event, sandgate.Output) else 0):
                seen += 1
                await async_sandbox.files.write(f"{names[0]}-{seen}", "")
        return seen

    assert await asyncio.gather(*map(follow, PAIR)) == [ROUNDS, ROUNDS]


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


def warnings_in_a_child(use: Callable[[], object]) -> str:
    """What a forked process is told when it does something.

    gRPC may hang or crash there, which is why there is a warning; so it is kept out.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Python's own, of threads and forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        grpc.insecure_channel = grpc.aio.insecure_channel = MagicMock()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            use()
        os.write(write, "; ".join(str(warning.message) for warning in caught).encode())
        os._exit(0)
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(read) as said:
        return said.read()


def test_a_fork_is_warned_of(server: Server) -> None:
    with sandgate.Client(server.address) as client:
        client.list()
        stub = client._transport._channels.stub  # pyright: ignore[reportPrivateUsage]
        assert warnings_in_a_child(lambda: [stub(), stub()]).count("os.fork()") == 1
        # The parent's connection is none the worse.
        client.list()


def test_a_fork_is_warned_of_by_tasks(server: Server) -> None:
    client = sandgate.AsyncClient(server.address)
    asyncio.run(client.list())

    async def stubs() -> None:
        for _ in range(2):
            client._transport._channels.stub()  # pyright: ignore[reportPrivateUsage]

    assert warnings_in_a_child(lambda: asyncio.run(stubs())).count("os.fork()") == 1
    asyncio.run(client.list())
    asyncio.run(client.close())


def test_a_closed_client_ends_what_waits(sync_sandbox: sandgate.Sandbox, server: Server) -> None:
    client = sandgate.Client(server.address)
    exec = client.sandbox(sync_sandbox.name).exec("sleep 1000")
    timer = threading.Timer(0.3, client.close)
    timer.start()
    with pytest.raises(sandgate.errors.ClosedError):
        exec.wait()
    timer.join()
    assert sync_sandbox.signal_exec(exec.id, 9) > 0
