"""dcode calls providers from its event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def off_loop(work: Callable[[], T]) -> T:
    """Does it in another thread if an event loop runs in this one.

    dcode makes and sets up its sandbox by plain calls on the loop of its server. A guard there (blockbuster) makes an
    error of every sleep and of many looks at the file system, but lets a thread be waited for. dcode serves nobody yet.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # At the end of a process too, when there are no new threads to be had.
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix="sandgate-dcode") as thread:
        return thread.submit(work).result()
