"""What users of agent-sandbox's SDK do, in a sandbox that holds our runtime: sdk.rs starts it.

    sdk.py NAMESPACE POOL ROUTER CLAIM

Makes a sandbox of the pool for each way to reach one, and at last uses the one of a claim that is there already.
"""

import io
import sys

from k8s_agent_sandbox import SandboxClient
from k8s_agent_sandbox.exceptions import SandboxRequestError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig, SandboxInClusterConnectionConfig
from k8s_agent_sandbox.sandbox import Sandbox

# More than a line of a terminal, and nothing that is text.
BYTES = bytes(range(256)) * 4096


def use(sandbox: Sandbox) -> None:
    assert sandbox.commands and sandbox.files
    # There is no shell around a command: its words are those of the program.
    done = sandbox.commands.run("sh -c 'echo out; echo err >&2; exit 3'")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 3), done
    late = sandbox.commands.run("sleep 60", command_timeout=1)
    assert late.timed_out and late.exit_code != 0, late

    files = sandbox.files
    assert not files.exists("dir/bytes")
    files.write("dir/bytes", BYTES)
    files.write("text", "h\u00e4llo\n")
    files.write("streamed", io.BytesIO(BYTES))
    assert files.exists("dir/bytes") and files.exists("text")
    assert files.read("dir/bytes") == BYTES
    assert files.read("streamed") == BYTES
    copy = io.BytesIO()
    assert files.read_to("dir/bytes", copy) == len(BYTES) and copy.getvalue() == BYTES
    assert sandbox.commands.run("cat text").stdout == "h\u00e4llo\n"

    entries = {entry.name: entry for entry in files.list(".")}
    assert (entries["dir"].type, entries["text"].type) == ("directory", "file"), entries
    assert entries["text"].size == 7 and entries["streamed"].size == len(BYTES), entries
    assert [entry.name for entry in files.list("dir")] == ["bytes"]
    try:
        files.read("missing")
    except SandboxRequestError as error:
        assert error.status_code == 404, error
    else:
        raise AssertionError("a file that is not there was read")


def main() -> None:
    namespace, pool, router, claim = sys.argv[1:]
    direct = SandboxDirectConnectionConfig(api_url=router)
    for config in (direct, SandboxInClusterConnectionConfig()):
        with SandboxClient(connection_config=config) as client:
            use(client.create_sandbox(warmpool=pool, namespace=namespace))
    sandbox = SandboxClient(connection_config=direct).get_sandbox(claim, namespace=namespace)
    assert sandbox.commands
    assert sandbox.commands.run("sh -c 'echo theirs >> ours; cat ours'").stdout == "ours\ntheirs\n"


main()
