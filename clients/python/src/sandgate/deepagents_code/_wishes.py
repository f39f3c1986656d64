"""What a new sandbox is to be like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_NAMES = ("template", "idle", "ttl")


@dataclass(frozen=True, slots=True)
class Wishes:
    """For a new sandbox; `None` leaves it to the template."""

    template: str | None = None
    idle: float = 30 * 60
    """How long it may idle. Never left to the template: dcode forgets a sandbox whose set-up fails."""
    ttl: float | None = None

    @classmethod
    def read(cls, env: Mapping[str, str], params: Mapping[str, object]) -> Wishes:
        """Those of dcode's configuration, else of the environment. Raises `ValueError`."""
        if strange := sorted(set(params) - set(_NAMES)):
            raise ValueError(f"unknown parameters: {', '.join(strange)}; there are {', '.join(_NAMES)}")
        said = {name: str(params.get(name) or env.get(f"SANDGATE_DCODE_{name.upper()}") or "") for name in _NAMES}
        wishes = cls(template=said["template"] or None)
        return cls(
            template=wishes.template,
            idle=_span("idle", said["idle"]) if said["idle"] else wishes.idle,
            ttl=_span("ttl", said["ttl"]) if said["ttl"] else wishes.ttl,
        )


def _span(name: str, text: str) -> float:
    """Seconds, from the words of the command line. An idle limit of 0 is none."""
    if text == "none" and name == "idle":
        return 0.0
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ValueError(f"bad {name} {text!r}: expected 90s, 10m, 1h or 7d{', or none' if name == 'idle' else ''}")
    return float(int(match[1]) * _SECONDS[match[2]])
