"""A sandbox that has what agents expect: `python`, on a server of these tests or on one that the environment names.

`SANDGATE_TEST_ADDR` (and `SANDGATE_TEST_TOKEN`) name a server, `SANDGATE_TEST_TEMPLATE` its template; so the same tests
run against any provider. Tests that kill their server start their own, always.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from place import TEMPLATE, Place, tools_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Where most tests make their sandboxes."""
    address = os.environ.get("SANDGATE_TEST_ADDR")
    template = os.environ.get("SANDGATE_TEST_TEMPLATE")
    if address is not None:
        yield Place(address, os.environ.get("SANDGATE_TEST_TOKEN"), template)
        return
    with tools_server(tmp_path_factory.mktemp("deepagents") / "tools") as server:
        yield Place(server.address, None, TEMPLATE)
