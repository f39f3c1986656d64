"""Puts the server's programs into the wheel, if `SANDGATE_WHEEL_BIN` names the directory that they are in."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # pyright: ignore[reportMissingTypeStubs]

PROGRAMS = ("sandgate-server", "sandgate-runtime", "sandgate-monitor")


class ProgramsHook(BuildHookInterface[Any]):
    """`Client.local()` finds them there. Such a wheel is for one kind of machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        directory = os.environ.get("SANDGATE_WHEEL_BIN")
        if directory and version == "standard":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
            build_data["pure_python"] = False
            for name in PROGRAMS:
                build_data["force_include"][str(Path(directory) / name)] = f"sandgate/_bin/{name}"
