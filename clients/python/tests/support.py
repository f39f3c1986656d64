"""What tests have in common."""

from __future__ import annotations

import inspect
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import sandgate
from sandgate._core.server import find_companion, find_program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATIENCE = 60.0


def new_name() -> str:
    return f"py-{secrets.token_hex(6)}"


async def done(value: Any) -> Any:
    """The answer of either client."""
    return await value if inspect.isawaitable(value) else value


async def each(stream: Any) -> AsyncIterator[Any]:
    """The items of either kind of stream."""
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


class Within:
    """`async with`, for either kind."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        enter = getattr(self._manager, "__aenter__", None) or self._manager.__enter__
        return await done(enter())

    async def __aexit__(self, *error: object) -> None:
        leave = getattr(self._manager, "__aexit__", None) or self._manager.__exit__
        await done(leave(*error))


def until(true: Callable[[], bool]) -> None:
    """Waits until something holds."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it was waited in vain"
        time.sleep(0.02)


class Server:
    """The real server, in a state directory of its own. Its sandboxes end with it."""

    def __init__(self, config: str = "listen = []") -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="sandgate-"))
        self.state_dir = self.dir / "state"
        self.state_dir.mkdir(mode=0o700)
        self._cgroup = f"sandgate-test-py-{os.getpid()}-{secrets.token_hex(3)}"
        (self.dir / "server.toml").write_text(f'cgroup_parent = "/{self._cgroup}"\n{config}\n')
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.state_dir}/sandgate.sock"

    @property
    def env(self) -> dict[str, str]:
        program = server_program()
        env = {"PATH": os.environ["PATH"], "SANDGATE_LOG": "warn"}
        for name, variable in (("runtime", "SANDGATE_RUNTIME_BIN"), ("monitor", "SANDGATE_MONITOR_BIN")):
            found = os.environ.get(variable) or find_companion(program, f"sandgate-{name}")
            if found is not None:
                env[variable] = str(found)
        return env

    def start(self) -> None:
        command = [server_program(), "--config", self.dir / "server.toml", "--state-dir", self.state_dir]
        with (self.dir / "said").open("wb") as said:
            self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=said)
        with sandgate.Client(self.address) as client:
            until(lambda: _answers(client))

    def tcp_address(self) -> str:
        """Where it listens, if it was told to."""
        lines = (self.dir / "said").read_text().splitlines()
        return next(line.strip() for line in lines if line.strip().startswith("http://"))

    def kill(self) -> None:
        """As `kill -9` does. Sandboxes live on."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is None:
            self.start()
        with sandgate.Client(self.address) as client:
            for info in client.list():
                client.sandbox(info.name).delete()
        # Their disks and cgroups go behind the answer.
        until(lambda: not any((self.state_dir / "trash").iterdir()))
        self.kill()
        shutil.rmtree(self.dir)
        remove_cgroups(self._cgroup)


def remove_cgroups(name: str) -> None:
    """Those that a server made for its sandboxes, of every cgroup tree, once what is in them is gone."""
    for path in [*Path("/sys/fs/cgroup").glob(name), *Path("/sys/fs/cgroup").glob(f"*/{name}")]:
        until(lambda path=path: not any(each.is_dir() for each in path.iterdir()))
        path.rmdir()


def server_program() -> Path:
    found = find_program(os.environ)
    assert found is not None, "make build, or make test"
    return found


def _answers(client: sandgate.Client) -> bool:
    try:
        client.list()
    except sandgate.SandgateError:
        return False
    return True
