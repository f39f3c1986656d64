"""What a backend was told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._core.requests import connection_mode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .._core.types import Volume
    from .._core.values import Span

MOST_OUTPUT = 1 << 20
"""As much of a command's output as one answer of the server has room for."""
MOST_SAVED = 256 << 20
"""As much of it as goes to a file: a command that writes without end must not fill the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How sandboxes are made, and how they are used."""

    template: str | None = None
    labels: Mapping[str, str] | None = None
    env: Mapping[str, str] | None = None
    ttl: Span | None = None
    idle: Span | None = None
    warm_pool: str | None = None
    connection: str | None = None
    volumes: Sequence[Volume] = ()
    ephemeral: bool = False
    root_dir: str | None = None
    virtual_mode: bool = False
    timeout: Span | None = None
    max_output_bytes: int = MOST_OUTPUT
    max_saved_bytes: int = MOST_SAVED
    stream: bool = True

    def __post_init__(self) -> None:
        connection_mode(self.connection)  # Says now what is wrong with it.
        if self.root_dir is not None and not self.root_dir.startswith("/"):
            raise ValueError(f"root_dir is a path of the sandbox and begins with a slash, not {self.root_dir!r}")
        if self.virtual_mode and self.root_dir is None:
            raise ValueError("virtual_mode needs a root_dir, the directory that is to be /")
        if not 4096 <= self.max_output_bytes <= MOST_OUTPUT:
            raise ValueError(f"max_output_bytes is between 4096 and {MOST_OUTPUT}, not {self.max_output_bytes}")
        if self.max_saved_bytes < self.max_output_bytes:
            raise ValueError(f"max_saved_bytes is at least max_output_bytes, not {self.max_saved_bytes}")
