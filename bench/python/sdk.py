"""agent-sandbox's own SDK, straight to the pods of a pool that serve its python-runtime.

    sdk.py NAMESPACE POOL
"""

import sys

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.models import SandboxInClusterConnectionConfig
from worker import serve

NOTHING = "sh -c true"


def main() -> None:
    namespace, pool = sys.argv[1:]
    with SandboxClient(connection_config=SandboxInClusterConnectionConfig()) as client:
        sandbox = client.create_sandbox(warmpool=pool, namespace=namespace)

        def run():
            assert sandbox.commands.run(NOTHING).exit_code == 0

        def first():
            made = client.create_sandbox(warmpool=pool, namespace=namespace)
            assert made.commands.run(NOTHING).exit_code == 0
            return made.terminate

        serve({"run": run, "first": first})
        sandbox.terminate()


main()
