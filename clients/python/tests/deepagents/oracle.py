"""deepagents' own sandbox over processes of this machine: what another one is held against.

`BaseSandbox` does everything by shell commands. Here they are run by a user without rights, in a directory that has the
same path in the sandbox, so that results can be compared as they are. `make` and `look` are scripts: both sides run the
very same code, each as the user that its commands have.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sandgate

NOBODY = 65534
"""Root may read everything, so that nothing would be unreadable."""
ENV = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}

TRANSFER = """
import base64, errno, json, os, sys

def code(error):
    if error.errno == errno.ELOOP: return "invalid_path"
    if isinstance(error, FileNotFoundError): return "file_not_found"
    if isinstance(error, PermissionError): return "permission_denied"
    if isinstance(error, IsADirectoryError): return "is_directory"
    # What is there, and where nothing can be made, may be a symlink to nothing.
    if isinstance(error, FileExistsError) and not os.path.exists(error.filename): return "file_not_found"
    if isinstance(error, (NotADirectoryError, FileExistsError)): return "invalid_path"
    return error.strerror

def upload(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(base64.b64decode(content))

def download(path):
    if os.path.isdir(path):
        raise IsADirectoryError()
    with open(path, "rb") as file:
        return base64.b64encode(file.read()).decode()

answers = []
for name, *arguments in json.load(sys.stdin):
    try:
        answers.append([globals()[name](*arguments), None])
    except OSError as error:
        answers.append([None, code(error)])
json.dump(answers, sys.stdout)
"""

MAKE = """
import base64, json, os, shutil, sys

root, entries = json.load(sys.stdin)
for here, names, _ in os.walk(root):
    for name in names:
        if not os.path.islink(os.path.join(here, name)):
            os.chmod(os.path.join(here, name), 0o700)
for name in os.listdir(root):
    path = os.path.join(root, name)
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
modes = []
for kind, path, value, mode in entries:
    path = os.path.join(root, path)
    if kind == "dir":
        os.mkdir(path)
    elif kind == "link":
        os.symlink(value, path)
    else:
        with open(path, "wb") as file:
            for part in value.split(","):
                content, times = part.split("*")
                file.write(base64.b64decode(content) * int(times))
    if kind != "link":
        modes.append((path, mode))
# What is made unreadable holds others.
for path, mode in reversed(modes):
    os.chmod(path, mode)
"""

LOOK = """
import hashlib, json, os, stat, sys

def look(path):
    state = os.lstat(path)
    if stat.S_ISLNK(state.st_mode): return ["link", os.readlink(path)]
    mode = oct(stat.S_IMODE(state.st_mode))
    if stat.S_ISDIR(state.st_mode): return ["dir", mode]
    try:
        with open(path, "rb") as file:
            content = file.read()
        told = hashlib.sha256(content).hexdigest() if len(content) > 4096 else content.decode("latin-1")
        return ["file", mode, state.st_size, told]
    except PermissionError:
        return ["file", mode, state.st_size, None]

root = sys.argv[1]
found = {}
for here, names, files in os.walk(root):
    for name in names + files:
        path = os.path.join(here, name)
        found[os.path.relpath(path, root)] = look(path)
json.dump(found, sys.stdout)
"""

Entry = tuple[str, str, str, int]
"""Kind, path below the root, content or target, mode. Content is `BASE64*TIMES,…`, so that huge ones are short."""


class Side(Protocol):
    """Where a tree is."""

    def python(self, script: str, input: str = "", *arguments: str) -> str:
        """Runs a script as the user of commands, and gives what it says."""
        ...


def make(side: Side, root: str, entries: Sequence[Entry]) -> None:
    """Makes a tree, in the place of the one before."""
    side.python(MAKE, json.dumps([root, entries]))


def look(side: Side, root: str) -> dict[str, Any]:
    """All of a tree that can be seen."""
    return json.loads(side.python(LOOK, "", root))


class Inside:
    """The side of a sandbox."""

    def __init__(self, sandbox: sandgate.Sandbox) -> None:
        self._sandbox = sandbox

    def python(self, script: str, input: str = "", *arguments: str) -> str:
        return self._sandbox.run(["python3", "-c", script, *arguments], input=input, check=True).stdout


class Oracle(BaseSandbox):
    """`BaseSandbox`, as deepagents has it, on this machine."""

    enable_capture_offload = True

    def __init__(self) -> None:
        # A level of its own: a symlink to `..` must not lead to what only one of both sides has.
        self._home = tempfile.mkdtemp(prefix="sandgate-oracle-")
        self.root = f"{self._home}/tree"
        Path(self.root).mkdir()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            for path in (self._home, self.root):
                os.chown(path, NOBODY, NOBODY)
            self._user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    def close(self) -> None:
        shutil.rmtree(self._home)

    @property
    def id(self) -> str:
        return Path(self._home).name

    def _run(self, command: Sequence[str], input: str = "", **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            check=False,
            input=input.encode(),
            stdout=subprocess.PIPE,
            cwd=self.root,
            env=ENV,
            umask=0o022,
            **self._user,
            **options,
        )

    def python(self, script: str, input: str = "", *arguments: str) -> str:
        done = self._run(["python3", "-c", script, *arguments], input)
        done.check_returncode()
        return done.stdout.decode()

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        done = self._run(["/bin/sh", "-c", command], stderr=subprocess.STDOUT, timeout=timeout)
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return ExecuteResponse(output=done.stdout.decode(errors="replace"), exit_code=code)

    def _transfer(self, *calls: Sequence[Any]) -> list[tuple[str | None, Any]]:
        return json.loads(self.python(TRANSFER, json.dumps(calls)))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        calls = [("upload", path, base64.b64encode(content).decode()) for path, content in files]
        done = self._transfer(*calls)
        return [FileUploadResponse(path=path, error=error) for (path, _), (_, error) in zip(files, done, strict=True)]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        done = self._transfer(*(("download", path) for path in paths))
        return [
            FileDownloadResponse(path=path, content=None if text is None else base64.b64decode(text), error=error)
            for path, (text, error) in zip(paths, done, strict=True)
        ]
