"""A small process beside dcode: keeps a sandbox from idling while dcode lives, and removes it when dcode is gone.

dcode itself removes its sandbox in an exit handler, which is not run: its server ends by the signal that told it to
(uvicorn raises it again), and a set-up that fails is not followed by a removal at all. On the other side an idle limit
alone would take the sandbox from somebody who is at lunch. Whatever ends dcode, its end of a pipe is closed.

This process has a session of its own, because dcode signals its whole process group. Where it is killed too, the idle
limit is what is left.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys

from .. import Client, errors

NO_LIMIT_PAUSE = 3600.0
GOODBYE = 5.0


def start(address: str, name: str, uid: str, idle: float) -> subprocess.Popen[bytes]:
    """Starts one. The token is in the environment, or where the client finds it by itself."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, address, name, uid, str(idle)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def dismiss(process: subprocess.Popen[bytes]) -> None:
    """Its sandbox is gone. It finds that out by itself, and need not be waited for."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        process.communicate(timeout=GOODBYE)


def main(address: str, name: str, uid: str, idle: float) -> None:
    """Keeps the sandbox until stdin is at its end, then removes it."""
    with Client(address) as client:
        sandbox = client.sandbox(name)
        while not select.select([sys.stdin], [], [], idle / 3 or NO_LIMIT_PAUSE)[0]:
            # A call that reaches the sandbox. If there is no server, the next one may find one.
            with contextlib.suppress(errors.SandgateError):
                sandbox.files.exists("/")
        with contextlib.suppress(errors.SandgateError):
            # What has the name by now may be another's.
            if sandbox.refresh().uid == uid:
                sandbox.delete()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
