"""Where paths of the agent are in the sandbox.

deepagents' middleware puts large results, old conversations and binary content into directories at the root, where an
ordinary user may write nothing. So they are made there, by root and for everybody; then a command sees them as well. A
sandbox that does not let us has them in a directory of its working directory, and only the file tools know.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

ARTEFACTS = ("/large_tool_results", "/conversation_history", "/blobs")
MOVED = ".deepagents"
ROOT = "root"
"""Who makes them."""


@dataclass(frozen=True, slots=True)
class Places:
    """Between what the agent says and what the sandbox knows."""

    root_dir: str | None = None
    """Where relative paths and commands begin; `None`: the sandbox's working directory."""
    virtual: bool = False
    """`root_dir` is the agent's `/`. The server sees to it, in the file calls."""
    moved_to: str | None = None
    """Where the directories of the middleware are, if they could not be made."""

    def inward(self, path: str) -> str:
        """A path for a file call."""
        if self.virtual:
            return path
        if self.moved_to is not None and is_artefact(path):
            return self.moved_to + path
        return posixpath.join(self.root_dir, path) if self.root_dir is not None else path

    def outward(self, path: str) -> str:
        """A path from a file call. What is not UTF-8 in it can't be said to a model."""
        if self.moved_to is not None and path.startswith(f"{self.moved_to}/"):
            path = path.removeprefix(self.moved_to)
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def start(self, path: str | None) -> str:
        """Where a search begins: without a path in the working directory, or at the root of a virtual one."""
        return path or ("/" if self.virtual else ".")

    def for_commands(self, path: str) -> str:
        """An absolute path of the agent, as commands see it."""
        if self.virtual and self.root_dir is not None:
            return posixpath.join(self.root_dir, path.lstrip("/"))
        return self.inward(path)


def is_artefact(path: str) -> bool:
    """Whether the middleware's directories hold it."""
    return any(path == root or path.startswith(f"{root}/") for root in ARTEFACTS)
