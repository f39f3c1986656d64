"""The file tools of a deep agent, by one of two backends.

    backend.py sandgate ADDRESS SANDBOX
    backend.py langchain-k8s NAMESPACE POOL ROUTER
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator

from deepagents.backends.protocol import SandboxBackendProtocol
from worker import serve

TREE = """mkdir -p /tmp/tree && cd /tmp/tree && for d in 0 1 2 3 4 5 6 7 8 9; do
    mkdir $d; for f in 0 1 2 3 4 5 6 7 8 9; do echo $d needle $f > $d/$f.txt; done
done"""
TEXT = "a line of text\n" * 70


@contextlib.contextmanager
def sandgate_backend(address: str, name: str) -> Iterator[SandboxBackendProtocol]:
    import sandgate
    from sandgate.deepagents import SandgateBackend

    with sandgate.Client(address) as client:
        yield SandgateBackend(client.sandbox(name))


@contextlib.contextmanager
def langchain_backend(namespace: str, pool: str, router: str) -> Iterator[SandboxBackendProtocol]:
    from k8s_agent_sandbox import SandboxClient
    from k8s_agent_sandbox.models import SandboxDirectConnectionConfig
    from langchain_k8s import KubernetesSandbox

    with SandboxClient(connection_config=SandboxDirectConnectionConfig(api_url=router)) as client:
        sandbox = client.create_sandbox(warmpool=pool, namespace=namespace)
        yield KubernetesSandbox(sandbox=sandbox)
        sandbox.terminate()


def main() -> None:
    make = {"sandgate": sandgate_backend, "langchain-k8s": langchain_backend}[sys.argv[1]]
    with make(*sys.argv[2:]) as backend:
        made = backend.execute(TREE)
        assert made.exit_code == 0, made
        for name in ("read", "edited"):
            done(backend.write(f"/tmp/tree/{name}", "one\n" + TEXT))
        texts = itertools.cycle((("one", "two"), ("two", "one")))
        serve(
            {
                "execute": lambda: backend.execute("true").exit_code,
                "write": lambda: done(backend.write("/tmp/tree/written", TEXT)),
                "read": lambda: done(backend.read("/tmp/tree/read")),
                "edit": lambda: done(backend.edit("/tmp/tree/edited", *next(texts))),
                "ls": lambda: done(backend.ls("/tmp/tree/0")),
                "glob": lambda: done(backend.glob("**/*.txt", "/tmp/tree")),
                "grep": lambda: done(backend.grep("needle", "/tmp/tree")),
            }
        )


def done(result: object) -> None:
    """A failure is quick, and is no work; neither is to find nothing."""
    assert getattr(result, "error", None) is None, result
    for found in ("entries", "matches"):
        assert getattr(result, found, True), result


main()
