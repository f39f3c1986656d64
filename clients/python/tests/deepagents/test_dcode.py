"""`dcode --sandbox sandgate`, really started: it finds, makes, sets up, uses and removes sandboxes."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from dcode import Dcode, Said, install
from support import Server, new_name, until

import sandgate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOOK: list[tuple[str, dict[str, Any]]] = [("execute", {"command": "pwd; cat *; hostname"})]


@pytest.fixture(scope="module")
def dcode(tmp_path_factory: pytest.TempPathFactory) -> Dcode:
    return install(tmp_path_factory.mktemp("dcode"))


@pytest.fixture
def client(server: Server) -> Iterator[sandgate.Client]:
    with sandgate.Client(server.address) as client:
        yield client


def run(dcode: Dcode, server: Server, *arguments: str, **env: str) -> Said:
    env = {"SANDGATE_ADDR": server.address} | env
    return dcode.run("--sandbox", "sandgate", *arguments, steps=LOOK, env=env)


def made_by_dcode(client: sandgate.Client) -> list[sandgate.SandboxInfo]:
    return client.list("made-by=dcode")


def test_makes_sets_up_uses_and_removes(dcode: Dcode, server: Server, client: sandgate.Client, tmp_path: Path) -> None:
    setup = tmp_path / "setup.sh"
    setup.write_text("[[ -n ${WORD} ]] && echo ${WORD} from $(pwd) > made-by-setup\n")
    said = run(dcode, server, "--sandbox-setup", str(setup), WORD="hello")
    assert said.code == 0, said.output
    assert "heard [/workspace hello from /workspace dcode-" in said.words
    until(lambda: made_by_dcode(client) == [])


def test_finds_and_keeps_what_is_there(dcode: Dcode, server: Server, client: sandgate.Client) -> None:
    with client.create(new_name(), ttl=600) as sandbox:
        sandbox.files.write("note", "was here\n")
        # As idle ones are found after a night.
        sandbox.suspend(grace=0)
        said = run(dcode, server, "--sandbox-id", sandbox.name)
        assert said.code == 0, said.output
        assert f"heard [/workspace was here {sandbox.name} " in said.words
        assert sandbox.refresh().ready
        assert made_by_dcode(client) == []


def test_a_set_up_that_fails_leaves_nothing(
    dcode: Dcode, server: Server, client: sandgate.Client, tmp_path: Path
) -> None:
    setup = tmp_path / "setup.sh"
    setup.write_text("echo what went wrong; exit 7\n")
    said = run(dcode, server, "--sandbox-setup", str(setup))
    assert said.code == 1
    assert "Setup failed" in said.words
    until(lambda: made_by_dcode(client) == [])


def test_no_server_is_said(dcode: Dcode, server: Server) -> None:
    said = run(dcode, server, SANDGATE_ADDR="unix:///none/such.sock")
    assert said.code == 1
    assert (
        "no Sandgate server at unix:///none/such.sock: start `sandgate-server`, or say in SANDGATE_ADDR" in said.words
    )


# --- the provider by itself, without the seconds that dcode takes to start ---

PROVIDER = """
import asyncio, json, os, socket, sys
from blockbuster import BlockBuster
from deepagents_code.integrations.sandbox_registry import SandboxRegistry

guard = BlockBuster()
# As langgraph's server has it, on whose loop dcode calls.
for name in ("os.stat", "os.listdir", "os.remove", "threading.Lock.acquire"):
    guard.functions.pop(name)
for name in [name for name in guard.functions if name.startswith(("io.", "os.path."))]:
    guard.functions.pop(name)
"""


def test_looking_at_it_costs_nothing(dcode: Dcode) -> None:
    script = f"""{PROVIDER}
def refuse(*_):
    raise AssertionError("no connection is made")
socket.socket.connect = refuse
registry = SandboxRegistry.load()
found = registry.get_metadata("sandgate")
assert not {{"deepagents", "sandgate.deepagents"}} & set(sys.modules), "imported for nothing"
print(json.dumps([found.working_dir, found.supports_sandbox_id, found.supports_snapshot_name]))
"""
    assert json.loads(dcode.python(script)) == ["/workspace", True, False]


def test_a_sandbox_has_an_idle_limit_unless_told_otherwise(dcode: Dcode) -> None:
    script = """
from sandgate.deepagents_code._wishes import Wishes
for env in ({}, {"SANDGATE_DCODE_IDLE": ""}, {"SANDGATE_DCODE_IDLE": "90s"}, {"SANDGATE_DCODE_IDLE": "none"}):
    print(Wishes.read(env, {}).idle)
"""
    assert [float(line) for line in dcode.python(script).split()] == [1800, 1800, 90, 0]


def test_every_method_works_with_the_deepagents_that_dcode_pins(dcode: Dcode, server: Server) -> None:
    script = f"""
import asyncio, importlib.metadata, json
from sandgate import Client
from sandgate.deepagents import SandgateBackend
assert importlib.metadata.version("deepagents") == "0.7.6"
CALLS = [
    ("write", ["/workspace/a.py", "x = 1\\n"]),
    ("read", ["/workspace/a.py"]),
    ("edit", ["/workspace/a.py", "1", "2"]),
    ("ls", ["/workspace"]),
    ("glob", ["*.py"]),
    ("grep", ["x = 2"]),
    ("upload_files", [[("/workspace/b", b"b")]]),
    ("download_files", [["/workspace/b"]]),
    ("execute", ["cat a.py"]),
    ("delete", ["/workspace/a.py"]),
]
async def call(backend, kind, name, arguments, **more):
    answer = getattr(backend, kind + name)(*arguments, **more)
    return await answer if kind else answer
async def main():
    with Client("{server.address}") as client:
        for kind in ("", "a"):
            async with SandgateBackend(client=client, ttl=600) as backend:
                for name, arguments in CALLS:
                    answer = await call(backend, kind, name, arguments)
                    for one in answer if isinstance(answer, list) else [answer]:
                        assert getattr(one, "error", None) is None, (name, one)
                    if name in ("glob", "grep"):
                        assert [match["path"] for match in answer.matches] == ["/workspace/a.py"], answer
                answer = await call(
                    backend, kind, "execute_with_offload", ["seq 999", "/large_tool_results/a"], max_inline_bytes=99
                )
                assert answer.offloaded, answer
                print(answer.response.output.splitlines()[-1])
asyncio.run(main())
"""
    assert dcode.python(script) == "999\n999\n"


def test_says_what_is_wrong(dcode: Dcode, server: Server) -> None:
    script = f"""{PROVIDER}
os.environ["SANDGATE_ADDR"] = "{server.address}"
provider = SandboxRegistry.load().create_provider("sandgate")
def wrong(**wishes):
    try:
        provider.get_or_create(**wishes)
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
wrong(sandbox_id="none-such")
wrong(sandbox_id="No Name")
wrong(template="none-such")
wrong(idle="soon")
wrong(color="red")
"""
    said = [json.loads(line) for line in dcode.python(script).splitlines()]
    assert [kind for kind, _ in said] == [
        "SandboxNotFoundError",
        "SandboxError",
        "SandboxError",
        "ValueError",
        "ValueError",
    ]
    missing, name, template, idle, parameter = [text for _, text in said]
    assert "none-such" in missing
    assert "`sandgate create NAME` makes one" in missing
    assert name.startswith("a sandbox's name has 1 to 40 lower-case letters")
    assert "none-such" in template
    assert idle == "bad idle 'soon': expected 90s, 10m, 1h or 7d, or none"
    assert parameter == "unknown parameters: color; there are template, idle, ttl"


def test_nothing_blocks_the_event_loop(dcode: Dcode, server: Server, client: sandgate.Client) -> None:
    script = f"""{PROVIDER}
os.environ |= {{"SANDGATE_ADDR": "{server.address}", "SANDGATE_DCODE_IDLE": "9m", "SANDGATE_DCODE_TTL": "2h"}}
async def main():
    guard.activate()
    provider = SandboxRegistry.load().create_provider("sandgate")
    backend = provider.get_or_create()
    ran = backend.execute("echo plainly")
    both = await asyncio.gather(backend.aexecute("echo one"), backend.als("/workspace"))
    print(json.dumps([backend.id, ran.output, both[0].output, both[1].error]))
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    provider.delete(sandbox_id=backend.id)
asyncio.run(main())
"""
    with dcode.start(script) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        name, *told = json.loads(process.stdout.readline())
        assert told == ["plainly\n", "one\n", None]
        info = client.get(name)
        assert info.idle_limit == 9 * 60
        assert info.deadline is not None
        assert info.created_at is not None
        assert (info.deadline - info.created_at).total_seconds() == pytest.approx(2 * 3600, abs=1)
        process.stdin.close()
        assert process.wait() == 0
    # By itself, and before it ended.
    assert made_by_dcode(client) == []


def test_what_is_killed_leaves_nothing_and_does_not_idle(dcode: Dcode, server: Server, client: sandgate.Client) -> None:
    script = f"""{PROVIDER}
os.environ |= {{"SANDGATE_ADDR": "{server.address}", "SANDGATE_DCODE_IDLE": "6s"}}
backend = SandboxRegistry.load().create_provider("sandgate").get_or_create()
print(backend.id, flush=True)
sys.stdin.read()
"""
    with dcode.start(script) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        # An idle sandbox would be gone before another one that idles as long.
        with client.create(new_name(), idle=8) as other:
            until(lambda: other.name not in [info.name for info in client.list()])
        assert [info.name for info in made_by_dcode(client)] == [name]
        process.send_signal(signal.SIGKILL)
    until(lambda: made_by_dcode(client) == [])
