"""How long to go on trying when there is no server to talk to."""

from __future__ import annotations

import random
import time

from .errors import NoServer, PatienceEnded, SandgateError, UnavailableError

FIRST_DELAY = 0.02
LONGEST_DELAY = 2.0


class Outage:
    """One time without contact: from the first failure to the next answer."""

    def __init__(self, patience: float, *, contacted: bool = True) -> None:
        self._patience = patience
        self._contacted = contacted
        self._since: float | None = None
        self._tries = 0

    def over(self) -> None:
        """There is contact."""
        self._since = None
        self._tries = 0
        self._contacted = True

    def failed(self, error: SandgateError) -> float:
        """How long to wait before the next try.

        Raises the error to give up with: one that trying again does not help against, or the end of patience. A server
        that was never there is not waited for.
        """
        if not isinstance(error, UnavailableError) or (isinstance(error, NoServer) and not self._contacted):
            raise error
        now = time.monotonic()
        if self._since is None:
            self._since = now
        left = self._since + self._patience - now
        if left <= 0:
            message = f"no contact with the server for {self._patience:g} s: {error.message}"
            raise PatienceEnded(message, last=error) from error
        delay = max(_jittered(self._tries), min(error.retry_after or 0, LONGEST_DELAY))
        self._tries += 1
        return min(delay, left)


def _jittered(tries: int) -> float:
    """Doubles with each try, and is spread, so that many clients of one server do not come back at once."""
    return min(FIRST_DELAY * 2 ** min(tries, 10), LONGEST_DELAY) * random.uniform(0.5, 1)
