"""From a conversation to the name of its sandbox, the same in every process."""

from __future__ import annotations

import base64
import hashlib
import re

from langgraph.config import get_config

from .._core.errors import ConfigError

PREFIX = "thread"
# A name has 40 characters at most; 100 bits are enough for no two threads to meet.
_DIGITS = 20
_PREFIX = re.compile(r"[a-z]([-a-z0-9]{0,17}[a-z0-9])?")


def thread_name(thread_id: str, prefix: str = PREFIX) -> str:
    """The name of a thread's sandbox. Thread ids are any text, so they are hashed.

    >>> thread_name("customer 17 / ticket 4")
    'thread-e343br66ta5u6wpbk3vq'
    """
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(f"{prefix!r} can't begin a sandbox's name: up to 19 of a-z, 0-9 and -, a letter first")
    digest = hashlib.sha256(thread_id.encode("utf-8", "surrogatepass")).digest()
    return f"{prefix}-{base64.b32encode(digest).decode().lower()[:_DIGITS]}"


def running_thread() -> str:
    """The thread of the graph that runs here."""
    try:
        configurable = get_config().get("configurable", {})
    except RuntimeError:
        raise ConfigError("no graph runs here: name the thread, as in `for_thread(thread_id)`") from None
    thread_id = configurable.get("thread_id")
    if thread_id is None:
        raise ConfigError(
            "the graph runs without a thread id, so its sandbox could not be found again: "
            "invoke it with config={'configurable': {'thread_id': …}}"
        )
    return str(thread_id)
