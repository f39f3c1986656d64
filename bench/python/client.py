"""Our own client.

    client.py ADDRESS TOKEN SANDBOX POOL [FLOOR REQUEST]

POOL is the warm pool that new sandboxes are taken from. FLOOR is what serves the calls of a runtime and does nothing
else; grpcio alone speaks to it. REQUEST is a request for a download from it, in hexadecimal digits.
"""

import itertools
import sys

import grpc
import sandgate
from worker import serve

FLOOR = "/sandgate.runtime.v1.RuntimeService/"
NOTHING = ["/bin/sh", "-c", "true"]
CONTENT = b"x" * 4096


def main() -> None:
    address, token, name, pool, *floor = sys.argv[1:]
    with sandgate.Client(address, token=token or None) as client:
        sandbox = client.sandbox(name)
        files = sandbox.files
        texts = itertools.cycle((("one", "two"), ("two", "one")))

        def first():
            made = client.create(warm_pool=pool)
            made.run(NOTHING, check=True)
            return made.delete

        works = {
            "run": lambda: sandbox.run(NOTHING, check=True).ok,
            "first": first,
            "read": lambda: len(files.read("/workspace/python/small")),
            "write": lambda: files.write("/workspace/python/written-by-python", CONTENT).size,
            "edit": lambda: files.edit("/workspace/python/edited-by-python", *next(texts)).replacements,
            "ls": lambda: len(files.list("/workspace/python/tree/0")),
            "glob": lambda: len(files.glob("**/*.txt", "/workspace/python/tree").paths),
            "download": lambda: len(sandbox.download("/workspace/python/large")),
        }
        if floor:
            works |= of_floor(*floor)
        serve(works)


def of_floor(address: str, request: str):
    """grpcio and nothing else: bytes there, bytes back."""
    channel = grpc.insecure_channel(address)
    echo = channel.unary_unary(FLOOR + "FileOps")
    stream = channel.unary_stream(FLOOR + "Download")
    wanted = bytes.fromhex(request)
    return {
        "echo": lambda: len(echo(b"")),
        "stream": lambda: sum(map(len, stream(wanted))),
    }


main()
