"""Lost connections, killed servers: nothing runs twice, no byte is lost or comes twice."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from support import Server, done, each, new_name

import sandgate
from sandgate import Changed, Deleted, Exited, FileEventKind, Output, Synced, errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def both(kind: str, address: str, **options: Any) -> Any:
    return (sandgate.Client if kind == "sync" else sandgate.AsyncClient)(address, **options)


class Restarter:
    """Kills the server, as `kill -9` does, and starts it again, beside the test."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._thread: threading.Thread | None = None
        self.times = 0

    def __call__(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self.times += 1
            self._server.kill()
            self._thread = threading.Thread(target=self._server.start)
            self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()


async def test_a_command_goes_on_when_the_server_is_killed(own_server: Server, kind: str) -> None:
    client = both(kind, own_server.address)
    sandbox = await done(client.create(new_name()))
    restart = Restarter(own_server)
    script = "echo run >> runs; for i in $(seq 300); do echo $i; echo e$i >&2; sleep 0.01; done"
    exec = await done(sandbox.exec(script))
    texts = {"stdout": "", "stderr": ""}
    async for event in each(exec):
        if isinstance(event, Output):
            texts[event.stream] += event.text
            if event.stream == "stdout" and any(texts["stdout"].endswith(f"\n{n}\n") for n in (50, 150, 250)):
                restart()
        elif isinstance(event, Exited):
            assert event.exit.code == 0
    restart.finish()
    assert restart.times > 0
    assert texts["stdout"] == "".join(f"{i}\n" for i in range(1, 301))
    assert texts["stderr"] == "".join(f"e{i}\n" for i in range(1, 301))
    assert await done(sandbox.files.read_text("runs")) == "run\n"
    await done(client.close())


@pytest.mark.parametrize("live", [False, True])
async def test_a_run_is_waited_for_across_a_restart(own_server: Server, kind: str, live: bool) -> None:
    client = both(kind, own_server.address)
    sandbox = await done(client.create(new_name()))
    restart = Restarter(own_server)
    timer = threading.Timer(0.5, restart)
    timer.start()
    callbacks = {"on_stdout": len} if live else {}
    result = await done(sandbox.run("echo run >> runs; echo a; sleep 2; echo b; cat runs", **callbacks))
    timer.join()
    restart.finish()
    assert (result.exit_code, result.stdout) == (0, "a\nb\nrun\n")
    await done(client.close())


async def test_stdin_arrives_once_across_restarts(own_server: Server, kind: str) -> None:
    client = both(kind, own_server.address)
    sandbox = await done(client.create(new_name()))
    restart = Restarter(own_server)
    exec = await done(sandbox.exec("sha256sum", stdin=True))
    expected = hashlib.sha256()
    for number in range(40):
        chunk = f"{number:08}".encode() * 10_000
        expected.update(chunk)
        if number == 10:
            restart()
        await done(exec.write(chunk))
    await done(exec.close_stdin())
    result = await done(exec.output())
    restart.finish()
    assert result.stdout.split()[0] == expected.hexdigest()
    await done(client.close())


async def test_transfers_go_on(own_server: Server, kind: str, tmp_path: Path) -> None:
    client = both(kind, own_server.address)
    sandbox = await done(client.create(new_name()))
    restart = Restarter(own_server)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 200_000)

    def once_at(done_bytes: int) -> Callable[[int, int | None], None]:
        hit = False

        def progress(now: int, _: int | None) -> None:
            nonlocal hit
            if now >= done_bytes and not hit:
                hit = True
                restart()

        return progress

    await done(sandbox.upload(source, "file", progress=once_at(20 << 20)))
    restart.finish()
    assert await done(sandbox.files.hash("file")) == hashlib.sha256(source.read_bytes()).digest()
    await done(sandbox.download("file", target, progress=once_at(20 << 20)))
    restart.finish()
    assert restart.times == 2
    assert target.read_bytes() == source.read_bytes()
    await done(client.close())


async def test_watches_go_on(own_server: Server, kind: str) -> None:
    client = both(kind, own_server.address)
    sandbox = await done(client.create(new_name()))
    synced = 0
    watch = client.watch()
    async for event in each(watch):
        match event:
            case Synced():
                synced += 1
                if synced == 1:
                    own_server.kill()
                    own_server.start()
                else:
                    await done(sandbox.delete())
            case Deleted(name):
                assert name == sandbox.name
                break
            case Changed(info):
                assert info.name == sandbox.name
            case _:
                pass
    watch.close()
    assert synced == 2

    sandbox = await done(client.create(new_name()))
    kinds: list[FileEventKind] = []
    files = sandbox.files.watch(".")
    async for event in each(files):
        kinds.append(event.kind)
        if len(kinds) == 1:
            own_server.kill()
            own_server.start()
        elif event.kind is FileEventKind.OVERFLOW:
            await done(sandbox.files.write("x", ""))
        elif event.kind is FileEventKind.CREATED:
            break
    files.close()
    assert kinds[:2] == [FileEventKind.WATCHING, FileEventKind.OVERFLOW]
    await done(client.close())


async def test_patience_ends(own_server: Server, kind: str) -> None:
    client = both(kind, own_server.address, patience=2)
    sandbox = await done(client.create(new_name()))
    exec = await done(sandbox.exec("sleep 1000"))
    own_server.kill()
    with pytest.raises(errors.PatienceEnded) as caught:
        await done(sandbox.run("true"))
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.last is not None
    with pytest.raises(errors.PatienceEnded):
        await done(exec.wait())
    own_server.start()
    # The command did not notice, and was not run.
    assert [info.id for info in await done(sandbox.execs())] == [exec.id]
    await done(client.close())


async def test_where_nothing_listens_that_is_told_at_once(kind: str, tmp_path: Path) -> None:
    for address in (f"unix://{tmp_path}/none.sock", "http://127.0.0.1:1"):
        client = both(kind, address)
        begun = time.monotonic()
        for call in (client.list, client.create):
            with pytest.raises(errors.NoServer) as caught:
                await done(call())
            assert isinstance(caught.value, ConnectionError)
            assert caught.value.request_id
        assert time.monotonic() - begun < 30
        with pytest.raises(errors.NoServer):
            async for _ in each(client.watch()):
                pass
        await done(client.close())


async def test_a_server_that_stops_in_order_is_waited_for(own_server: Server, kind: str) -> None:
    client = both(kind, own_server.address)
    sandbox = await done(client.create(new_name()))
    exec = await done(sandbox.exec("sleep 3; echo end"))
    assert own_server.process is not None
    own_server.process.terminate()
    own_server.process.wait()
    own_server.start()
    assert (await done(exec.output())).stdout == "end\n"
    await done(client.close())


def test_a_token_is_shown_on_tcp() -> None:
    with Server('listen = ["127.0.0.1:0"]') as server:
        address = server.tcp_address()
        token = (server.state_dir / "token").read_text().strip()
        with sandgate.Client(address, token=token) as client:
            assert client.list() == []
        with sandgate.Client(address, token="wrong") as client, pytest.raises(errors.Unauthenticated):
            client.list()

        async def asynchronous() -> None:
            async with sandgate.AsyncClient(address, token=token) as client:
                assert await client.list() == []

        asyncio.run(asynchronous())
