"""What the programs here have in common: they do what they are told, a word a line, and answer with the seconds it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

Work = Callable[[], "Callable[[], object] | object"]
"""What it gives back, if that can be called, is to be done afterwards and does not count."""


def serve(works: Mapping[str, Work]) -> None:
    """Until stdin ends."""
    print("ready", flush=True)
    for line in sys.stdin:
        work = works[line.strip()]
        begun = time.perf_counter()
        after = work()
        took = time.perf_counter() - begun
        if callable(after):
            after()
        print(took, flush=True)
