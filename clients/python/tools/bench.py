"""What two streams at a time cost beside one, in one client: two that wait for each other take twice as long.

Usage: bench.py [ROUNDS]

A server of its own is started, the release build if there is one, as root, because sandboxes are made. Machines are
shared and noisy: one and two take turns, and each line is the median of the ratios, with the middle half beside it. A
stream that comes as fast as this machine can send it keeps its cores busy, so two of them can't be free.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import sandgate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SIZE = 64 << 20
PACED = "for i in 1 2 3 4 5; do head -c 200000 /dev/zero; sleep 0.1; done"
FAST = f"head -c {SIZE} /dev/zero"


def main() -> None:
    """Runs all of it."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory(prefix="sandgate-bench-") as directory:
        source = Path(directory) / "source"
        source.write_bytes(os.urandom(SIZE))
        client = sandgate.Client.local(state_dir=Path(directory) / "state")
        try:
            with client, client.create(ttl=3600) as sandbox:
                sandbox.upload(source, "source")
                print("each line: two at a time / one, median of the ratios [middle half]")
                threads(sandbox, source, rounds)
                asyncio.run(tasks(client.address, sandbox.name, source, rounds))
        finally:
            if client.server is not None:
                client.server.stop()


def threads(sandbox: sandgate.Sandbox, source: Path, rounds: int) -> None:
    """Those of the synchronous client."""

    def follow(script: str) -> None:
        for _ in sandbox.exec(script):
            pass

    def download() -> None:
        with Path(os.devnull).open("wb") as nowhere:
            sandbox.download("source", nowhere)

    def measure(name: str, work: Callable[[int], object]) -> None:
        ratios: list[float] = []
        with ThreadPoolExecutor(2) as pool:
            for _ in range(rounds):
                times: list[float] = []
                for count in (1, 2):
                    begun = time.monotonic()
                    list(pool.map(work, range(count)))
                    times.append(time.monotonic() - begun)
                ratios.append(times[1] / times[0])
        told(f"threads: {name}", ratios)

    measure("output of 1 MB in half a second", lambda _: follow(PACED))
    measure("output of 64 MiB", lambda _: follow(FAST))
    measure("download of 64 MiB", lambda _: download())
    measure("upload of 64 MiB", lambda number: sandbox.upload(source, f"target-{number}"))


async def tasks(address: str, name: str, source: Path, rounds: int) -> None:
    """Those of the asynchronous one."""
    async with sandgate.AsyncClient(address) as client:
        sandbox = client.sandbox(name)

        async def follow(script: str) -> None:
            async for _ in await sandbox.exec(script):
                pass

        async def download() -> None:
            with Path(os.devnull).open("wb") as nowhere:  # noqa: ASYNC230
                await sandbox.download("source", nowhere)

        async def measure(name: str, work: Callable[[int], Awaitable[object]]) -> None:
            ratios: list[float] = []
            for _ in range(rounds):
                times: list[float] = []
                for count in (1, 2):
                    begun = time.monotonic()
                    await asyncio.gather(*map(work, range(count)))
                    times.append(time.monotonic() - begun)
                ratios.append(times[1] / times[0])
            told(f"tasks: {name}", ratios)

        await measure("output of 1 MB in half a second", lambda _: follow(PACED))
        await measure("output of 64 MiB", lambda _: follow(FAST))
        await measure("download of 64 MiB", lambda _: download())
        await measure("upload of 64 MiB", lambda number: sandbox.upload(source, f"target-{number}"))


def told(name: str, ratios: list[float]) -> None:
    """One line."""
    quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    print(f"{name:45} {quarters[1]:5.2f} [{quarters[0]:.2f} to {quarters[2]:.2f}]", flush=True)


if __name__ == "__main__":
    main()
