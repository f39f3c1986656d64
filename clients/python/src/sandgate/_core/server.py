"""Finding this machine's server, or starting one, so that a script needs no other terminal."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .endpoint import SOCKET_FILE
from .endpoint import state_dir as default_state_dir
from .errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "sandgate-server"
# What runs in sandboxes and beside them, and how the server is told where it is.
COMPANIONS = {"sandgate-runtime": "SANDGATE_RUNTIME_BIN", "sandgate-monitor": "SANDGATE_MONITOR_BIN"}
LOG_FILE = "server.log"


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server that this process started. It runs on when the process ends."""

    pid: int
    log: Path
    """What it says."""
    _process: subprocess.Popen[bytes] = field(repr=False, compare=False)

    def stop(self, timeout: float = 15) -> None:
        """Stops it in order. Sandboxes and their commands live on, and the next server finds them."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout)


def find_or_start(state_dir: str | os.PathLike[str] | None, timeout: float) -> tuple[str, LocalServer | None]:
    """The address of the server of a state directory, and the server if it was started for that."""
    directory = Path(state_dir) if state_dir else default_state_dir(os.environ, root=os.geteuid() == 0)
    path = (directory / SOCKET_FILE).absolute()
    address = f"unix://{path}"
    if _answers(path):
        return address, None
    started = _start(directory, path)
    end = time.monotonic() + timeout
    while not _answers(path):
        ended = started.poll()
        # One that was started elsewhere at the same moment may be first.
        if ended is not None and not _answers(path):
            raise ConfigError(f"{PROGRAM} ended at once, with status {ended}: {_last_words(directory)}")
        if time.monotonic() > end:
            started.terminate()
            started.wait()
            raise ConfigError(f"{PROGRAM} does not answer after {timeout:g} s: {_last_words(directory)}")
        time.sleep(0.02)
    if started.poll() is not None:
        return address, None
    return address, LocalServer(started.pid, directory / LOG_FILE, started)


def _start(directory: Path, path: Path) -> subprocess.Popen[bytes]:
    program = find_program(os.environ)
    if program is None:
        raise ConfigError(
            f"nothing listens on {path}, and there is no {PROGRAM} on the PATH; SANDGATE_SERVER_BIN may name one"
        )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    env = dict(os.environ)
    for name, variable in COMPANIONS.items():
        found = find_companion(program, name)
        if found is not None:
            env.setdefault(variable, str(found))
    log = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        # Without TCP, so that no port is taken. In a session of its own, so that Ctrl-C is not for it.
        return subprocess.Popen(
            [program, "--state-dir", directory, "--listen", "none"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(log)


def find_program(env: Mapping[str, str]) -> Path | None:
    """The server's program."""
    if named := env.get("SANDGATE_SERVER_BIN"):
        if not os.access(named, os.X_OK):
            raise ConfigError(f"SANDGATE_SERVER_BIN names no program: {named}")
        return Path(named)
    if found := shutil.which(PROGRAM, path=env.get("PATH")):
        return Path(found)
    in_wheel = Path(__file__).parent.parent / "_bin" / PROGRAM
    if os.access(in_wheel, os.X_OK):
        return in_wheel
    # Where `make build` and `make test` put them.
    cache = env.get("XDG_CACHE_HOME") or Path(env.get("HOME", "/")) / ".cache"
    target = Path(env.get("CARGO_TARGET_DIR") or Path(cache) / "sandgate" / "target")
    built = [path for profile in ("release", "debug") if (path := target / profile / PROGRAM).exists()]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def find_companion(program: Path, name: str) -> Path | None:
    """A program that the server needs, in a build of the repository. Beside itself the server finds it alone."""
    if (program.parent / name).exists():
        return None
    built = program.parent.parent / f"{platform.machine()}-unknown-linux-musl" / "release" / name
    return built if built.exists() else None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _last_words(directory: Path) -> str:
    try:
        lines = (directory / LOG_FILE).read_text(errors="replace").strip().splitlines()
    except OSError as error:
        return str(error)
    return " / ".join(lines[-3:]) or "it said nothing"
