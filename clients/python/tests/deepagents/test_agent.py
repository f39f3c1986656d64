"""Real agents with a scripted model: what the middleware makes of the backend, and not only what the backend says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from deepagents.backends import CompositeBackend, StateBackend, StoreBackend
from langgraph.store.memory import InMemoryStore
from place import TEMPLATE, Place, tools_server
from scripted import END, agent, said, thread
from support import done

import sandgate
from sandgate import errors
from sandgate.deepagents import SandgateBackend, thread_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INPUT: dict[str, Any] = {"messages": [("user", "go")]}
WORK = "/workspace/work"
CALLS = [
    ("write_file", {"file_path": f"{WORK}/app.py", "content": "import sys\nprint('hello', sys.argv[1])\n"}),
    ("execute", {"command": f"python {WORK}/app.py world"}),
    ("grep", {"pattern": "print(", "path": WORK, "output_mode": "content"}),
    ("edit_file", {"file_path": f"{WORK}/app.py", "old_string": "'hello'", "new_string": "'goodbye'"}),
    ("execute", {"command": f"cd {WORK} && python app.py world > result.txt; cat result.txt; exit 3"}),
    ("glob", {"pattern": "*.txt", "path": "/workspace"}),
    ("ls", {"path": WORK}),
    ("read_file", {"file_path": f"{WORK}/result.txt"}),
    ("delete", {"file_path": f"{WORK}/app.py"}),
    ("read_file", {"file_path": f"{WORK}/app.py"}),
]


@pytest.fixture
def backend(place: Place) -> Iterator[SandgateBackend]:
    with place.client() as client, SandgateBackend(client=client, template=place.template, ttl=600) as backend:
        yield backend


async def run(graph: Any, kind: str, name: str = "t") -> dict[str, Any]:
    return await done(graph.ainvoke(INPUT, thread(name)) if kind == "async" else graph.invoke(INPUT, thread(name)))


async def test_an_agent_works_in_a_sandbox(backend: SandgateBackend, kind: str) -> None:
    wrote, ran, found, edited, failed, matched, listed, read, deleted, gone = said(
        await run(agent(backend, *CALLS), kind)
    )
    assert f"{WORK}/app.py" in wrote
    assert "hello world" in ran
    assert "exit code 0" in ran
    assert f"{WORK}/app.py" in found
    assert "print('hello'" in found
    assert "1" in edited
    assert "goodbye world" in failed
    assert "[Command failed with exit code 3]" in failed
    assert f"{WORK}/result.txt" in matched
    assert f"{WORK}/app.py" in listed
    assert "goodbye world" in read
    assert f"{WORK}/app.py" in deleted
    assert "file_not_found" in gone

    downloaded = backend.download_files([f"{WORK}/result.txt", f"{WORK}/app.py"])
    assert [answer.content for answer in downloaded] == [b"goodbye world\n", None]
    assert [answer.error for answer in downloaded] == [None, "file_not_found"]


async def test_files_are_seeded_before_a_run(backend: SandgateBackend, kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "numbers").write_text("1\n2\n3\n")
    backend.sandbox().upload(tmp_path / "in", "in")
    graph = agent(backend, ("execute", {"command": "mkdir out; sort -r in/numbers > out/numbers"}))
    await run(graph, kind)
    backend.sandbox().download("out", tmp_path / "out")
    assert (tmp_path / "out" / "numbers").read_text() == "3\n2\n1\n"


async def test_a_composite_has_it_as_default(backend: SandgateBackend, kind: str) -> None:
    store = InMemoryStore()
    memories = StoreBackend(store=store, namespace=lambda _: ("memories",))
    composite = CompositeBackend(default=backend, routes={"/memories/": memories})
    answers = said(
        await run(
            agent(
                composite,
                ("write_file", {"file_path": "/memories/a.md", "content": "remember\n"}),
                ("write_file", {"file_path": "/workspace/b.md", "content": "remember too\n"}),
                ("execute", {"command": "ls /memories; cat /workspace/b.md"}),
                ("grep", {"pattern": "remember", "output_mode": "content"}),
                ("execute", {"command": "seq 30000"}),
                ("read_file", {"file_path": "/large_tool_results/call-4", "offset": 29_990}),
            ),
            kind,
        )
    )
    assert "No such file" in answers[2]
    assert "remember too" in answers[2]
    assert "/memories/a.md" in answers[3]
    assert "/workspace/b.md" in answers[3]
    assert "/large_tool_results/call-4" in answers[4]
    assert "29999" in answers[5]
    assert [item.key for item in store.search(("memories",))] == ["/a.md"]


async def test_a_composite_has_it_on_a_route(backend: SandgateBackend, kind: str) -> None:
    composite = CompositeBackend(
        default=StateBackend(),
        routes={"/workspace/": SandgateBackend(backend.sandbox(), root_dir="/workspace", virtual_mode=True)},
    )
    state = await run(
        agent(
            composite,
            ("write_file", {"file_path": "/notes.md", "content": "in state"}),
            ("write_file", {"file_path": "/workspace/deep/x.md", "content": "in the sandbox"}),
            ("glob", {"pattern": "*.md", "path": "/workspace"}),
            ("read_file", {"file_path": "/workspace/deep/x.md"}),
        ),
        kind,
    )
    answers = said(state)
    assert list(state["files"]) == ["/notes.md"]
    assert "/workspace/deep/x.md" in answers[2]
    assert "in the sandbox" in answers[3]
    assert backend.sandbox().files.read_text("/workspace/deep/x.md") == "in the sandbox"


async def test_large_output_is_in_a_file_that_both_see(backend: SandgateBackend, kind: str) -> None:
    state = await run(
        agent(
            backend,
            ("execute", {"command": "seq 100000; exit 4"}),
            ("read_file", {"file_path": "/large_tool_results/call-0", "offset": 99_998, "limit": 5}),
            ("execute", {"command": "tail -n 1 /large_tool_results/call-0; wc -l < /large_tool_results/call-0"}),
        ),
        kind,
    )
    preview, read, shell = said(state)
    assert "/large_tool_results/call-0" in preview
    assert "[Command failed with exit code 4]" in preview
    assert "... [99990 lines truncated] ..." in preview
    assert "99999" in read
    assert shell.startswith("100000\n100000\n")
    message = next(message for message in state["messages"] if message.type == "tool")
    assert message.artifact["exit_code"] == 4


async def test_output_is_streamed_while_it_runs(backend: SandgateBackend, kind: str) -> None:
    """The command goes on when what it wrote was seen, so it would never end if that came at the end."""
    graph = agent(backend, ("execute", {"command": "echo first; until [ -e seen ]; do sleep 0.05; done; echo last"}))
    events: list[dict[str, Any]] = []

    async def stream() -> None:
        if kind == "async":
            async for event in graph.astream(INPUT, thread("t"), stream_mode="custom"):
                await take(event)
        else:
            for event in graph.stream(INPUT, thread("t"), stream_mode="custom"):
                await take(event)

    async def take(event: dict[str, Any]) -> None:
        events.append(event)
        if event.get("text") == "first\n":
            assert (await backend.awrite("/workspace/seen", "")).error is None

    await stream()
    assert [event["type"] for event in events] == [
        f"sandgate.{what}" for what in ("started", "output", "output", "ended")
    ]
    assert "".join(event.get("text", "") for event in events) == "first\nlast\n"
    assert {event["sandbox"] for event in events} == {backend.id}
    assert events[-1]["exit_code"] == 0


async def test_a_thread_keeps_its_sandbox_when_the_server_is_killed(kind: str, tmp_path: Path) -> None:
    with tools_server(tmp_path / "tools") as server:
        options: dict[str, Any] = {"template": TEMPLATE, "ttl": 600}
        with sandgate.Client(server.address) as client:
            graph = agent(
                SandgateBackend.for_thread(client=client, **options),
                ("write_file", {"file_path": "/workspace/note", "content": "from the first turn\n"}),
                ("execute", {"command": "(while :; do sleep 1; done) & echo $! > pid; cat note"}),
                END,
                ("execute", {"command": "cat note; kill -0 $(cat pid) && echo still running"}),
                ("edit_file", {"file_path": "/workspace/note", "old_string": "first", "new_string": "second"}),
                END,
                ("ls", {"path": "/workspace"}),
            )
            first = said(await run(graph, kind, "one"))
            assert "from the first turn" in first[1]
            server.kill()
            server.start()
            second = said(await run(graph, kind, "one"))[2:]
            assert "from the first turn" in second[0]
            assert "still running" in second[0]
            # Another thread has another sandbox.
            assert "note" not in said(await run(graph, kind, "two"))[0]
            names = [thread_name(name) for name in ("one", "two")]
            assert sorted(info.name for info in client.list()) == sorted(names)

        # What another process does: a new client and a new backend.
        with sandgate.Client(server.address) as client:
            again = SandgateBackend.for_thread("one", client=client, **options)
            assert again.download_files(["/workspace/note"])[0].content == b"from the second turn\n"
            again.close()
            assert client.get(thread_name("one")).ready


def test_the_thread_must_be_known(place: Place) -> None:
    with place.client() as client:
        backend = SandgateBackend.for_thread(client=client)
        with pytest.raises(errors.ConfigError, match="no graph runs here"):
            backend.execute("true")
        assert backend.id
