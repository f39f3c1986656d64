"""What both kinds of channels are opened with, and what becomes of them in a forked process."""

from __future__ import annotations

import os
import warnings

# The contract keeps every message under 3 MiB.
MAX_MESSAGE = 4 << 20
# A server sends a heartbeat every 15 s.
SILENCE = 45.0
# A peer that went away without a word is noticed after the sum of both, while a call is open.
PING_EVERY_MS = 10_000
PING_TIMEOUT_MS = 10_000

_generation = 0


def options(target: str) -> list[tuple[str, int | str]]:
    """The options of a channel to a target."""
    # Of a Unix socket it would be the path, which no server takes for its name.
    authority = [("grpc.default_authority", "localhost")] if target.startswith("unix:") else []
    return [
        *authority,
        ("grpc.max_receive_message_length", MAX_MESSAGE),
        ("grpc.max_send_message_length", MAX_MESSAGE),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        # The pace of trying again is ours, see `retry`.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 250),
        ("grpc.enable_retries", 0),
        # A server on this machine is not reached through a proxy.
        ("grpc.enable_http_proxy", 0),
        # A connection of its own for each client and loop.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.primary_user_agent", "sandgate-python"),
    ]


def fork_generation() -> int:
    """How often this process was forked off, from the one that loaded this module."""
    return _generation


def warn_after_fork() -> None:
    """Says what is likely to go wrong."""
    warnings.warn(
        "a sandgate client that was used before os.fork() is used in the child. gRPC's threads do not survive a fork, "
        "so calls may hang: make the client in the child, or start processes with multiprocessing's 'spawn'.",
        RuntimeWarning,
        stacklevel=4,
    )


def _after_in_child() -> None:
    global _generation  # noqa: PLW0603
    _generation += 1


os.register_at_fork(after_in_child=_after_in_child)
