"""Where the tests of the backend make their sandboxes."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support import Server

import sandgate

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

TEMPLATE = "tools"


@dataclass(frozen=True)
class Place:
    """Where sandboxes are made, and from what."""

    address: str
    token: str | None
    template: str | None

    def client(self) -> sandgate.Client:
        return sandgate.Client(self.address, token=self.token)

    def aclient(self) -> sandgate.AsyncClient:
        return sandgate.AsyncClient(self.address, token=self.token)


@contextmanager
def tools_server(directory: Path) -> Generator[Server]:
    """A server whose template has `python` on its PATH. Debian only has `python3`."""
    found = shutil.which("python3", path="/usr/bin:/bin")
    assert found is not None, "the machine's python3 is needed below /usr"
    directory.mkdir()
    (directory / "python").symlink_to(found)
    config = f"""listen = []
default_template = "{TEMPLATE}"
[template.{TEMPLATE}]
host_paths = ["{directory}"]
env = {{ PATH = "{directory}:/usr/local/bin:/usr/bin:/bin", LANG = "C.UTF-8" }}
"""
    with Server(config) as server:
        yield server
