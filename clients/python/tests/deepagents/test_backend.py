"""The backend by itself: both halves, what is raised and what is answered, and where things lie."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest
from deepagents.backends.protocol import BackendProtocol, SandboxBackendProtocol, execute_accepts_timeout
from deepagents.backends.sandbox import BaseSandbox
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import CONFIG_KEY_RUNTIME  # pyright: ignore[reportMissingTypeStubs]
from support import done, new_name

import sandgate
from sandgate import errors
from sandgate.deepagents import SandgateBackend, thread_name
from sandgate.deepagents.places import ARTEFACTS, Places

if TYPE_CHECKING:
    from collections.abc import Iterator

    from place import Place

MIB = 1 << 20


@pytest.fixture
def sandbox(place: Place) -> Iterator[sandgate.Sandbox]:
    with place.client() as client, client.create(new_name(), template=place.template, ttl=600) as sandbox:
        yield sandbox


class Either:
    """The methods of one half, by the names of the other."""

    def __init__(self, backend: SandgateBackend, kind: str) -> None:
        self._backend = backend
        self._prefix = "a" if kind == "async" else ""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, self._prefix + name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await done(method(*args, **kwargs))

        return call


@pytest.fixture
def either(sandbox: sandgate.Sandbox, kind: str) -> Either:
    return Either(SandgateBackend(sandbox), kind)


# --- what it is ---


def public() -> set[str]:
    """Every method of deepagents' sandboxes."""
    kinds = (BackendProtocol, SandboxBackendProtocol, BaseSandbox)
    return {name for kind in kinds for name, value in vars(kind).items() if name[0] != "_" and callable(value)}


def test_every_method_is_our_own() -> None:
    names = public()
    assert len(names) == 22
    assert names <= vars(SandgateBackend).keys()
    for name in names:
        assert inspect.iscoroutinefunction(getattr(SandgateBackend, name)) == (name[1:] in names), name


def test_signatures_are_those_of_deepagents() -> None:
    assert execute_accepts_timeout(SandgateBackend)
    for name in public():
        ours, theirs = (inspect.signature(getattr(kind, name)).parameters for kind in (SandgateBackend, BaseSandbox))
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in theirs.values()
        ], name


async def test_no_file_method_runs_a_command(sandbox: sandgate.Sandbox, either: Either) -> None:
    large = "x" * (3 * MIB)
    await either.write("/workspace/a/b.txt", "one\r\ntwo\r\n")
    await either.write("/workspace/large", large)
    await either.write("/large_tool_results/x", "kept")
    await either.read("/workspace/a/b.txt")
    await either.read("/workspace/a/b.png")
    await either.edit("/workspace/a/b.txt", "one\ntwo", "1\n2")
    await either.ls("/workspace")
    await either.glob("*.txt")
    await either.grep("1", "/workspace", "*.txt", max_count=1)
    await either.upload_files([("/workspace/up", b"up"), ("/workspace/large2", large.encode())])
    answers = await either.download_files(["/workspace/up", "/workspace/large2", "/workspace/a/b.txt"])
    assert [answer.content for answer in answers] == [b"up", large.encode(), b"1\r\n2\r\n"]
    await either.delete("/workspace/a")
    assert sandbox.execs() == []
    # The list would have told.
    await either.execute("true")
    assert len(sandbox.execs()) == 1


async def test_the_asynchronous_half_uses_no_threads(
    sandbox: sandgate.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = SandgateBackend(sandbox)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a thread was used")

    monkeypatch.setattr(asyncio, "to_thread", refuse)
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
    await backend.awrite("/workspace/f", "text\n")
    await backend.aread("/workspace/f")
    await backend.aedit("/workspace/f", "text", "other")
    await backend.als("/workspace")
    await backend.aglob("*")
    await backend.agrep("other")
    large = bytes(3 * MIB)
    await backend.aupload_files([("/workspace/g", b"g"), ("/workspace/large", large)])
    assert [answer.content for answer in await backend.adownload_files(["/workspace/g", "/workspace/large"])] == [
        b"g",
        large,
    ]
    await backend.adelete("/workspace/g")
    assert (await backend.aexecute("cat f")).output == "other\n"
    answer = await backend.aexecute_with_offload("cat f", "/large_tool_results/y", max_inline_bytes=100)
    assert answer.response.output == "other\n"


async def test_many_files_and_large_ones_go_in_and_out(sandbox: sandgate.Sandbox, either: Either) -> None:
    files = [(f"/workspace/many/{number}", f"{number}".encode() * 100) for number in range(1500)]
    assert {answer.error for answer in await either.upload_files([*files, ("no", b"")])} == {None, "invalid_path"}
    answers = await either.download_files([path for path, _ in files] + ["/workspace/many", "/workspace/none"])
    assert [answer.content for answer in answers[:-2]] == [content for _, content in files]
    assert [answer.error for answer in answers[-2:]] == ["is_directory", "file_not_found"]
    big = [(f"/workspace/big/{number}", bytes([number]) * (MIB - number)) for number in range(5)]
    assert [answer.error for answer in await either.upload_files(big)] == [None] * 5
    assert [answer.content for answer in await either.download_files([path for path, _ in big])] == [c for _, c in big]
    entries = (await either.ls("/workspace/many")).entries
    assert len(entries) == 1500


# --- commands ---


async def test_output_is_whole_or_says_where_it_is(either: Either) -> None:
    fits = await either.execute("head -c 1048576 /dev/zero | tr '\\0' x")
    assert (fits.output, fits.exit_code, fits.truncated) == ("x" * MIB, 0, False)

    cut = await either.execute("seq 300000")
    assert cut.truncated
    assert cut.output.startswith("1\n2\n")
    assert cut.output.endswith("\n300000\n")
    path = cut.output.partition("the whole output is at ")[2].partition("]")[0]
    whole = (await either.download_files([path]))[0].content
    assert whole == "".join(f"{number}\n" for number in range(1, 300_001)).encode()
    assert (await either.execute(f"tail -n 1 {path}")).output == "300000\n"
    assert (await either.execute("echo out; echo err >&2; echo out")).output == "out\nerr\nout\n"
    assert "\ufffd" in (await either.execute("printf '\\377'")).output


async def test_output_without_end_does_not_fill_the_disk(sandbox: sandgate.Sandbox, kind: str) -> None:
    either = Either(SandgateBackend(sandbox, max_output_bytes=4096, max_saved_bytes=100_000), kind)
    cut = await either.execute("seq 100000; exit 5")
    assert (cut.exit_code, cut.truncated) == (5, True)
    assert cut.output.endswith("\n100000\n")
    said = re.search(r"; 100000 bytes of the output are at (\S+): the file ends after 100000 bytes", cut.output)
    assert said is not None
    assert sandbox.files.stat(said[1]).size == 100_000
    captured = await either.execute_with_offload("seq 100000", "/large_tool_results/c", max_inline_bytes=99)
    assert (captured.offloaded, captured.response.truncated) == (True, True)
    assert sandbox.files.stat("/large_tool_results/c").size == 100_000
    whole = await either.execute_with_offload("seq 10000", "/large_tool_results/w", max_inline_bytes=99)
    assert (whole.offloaded, whole.response.truncated) == (True, False)


@pytest.mark.parametrize("configurable", [{}, {CONFIG_KEY_RUNTIME: object()}])
async def test_where_no_graph_runs_commands_do(either: Either, configurable: dict[str, Any]) -> None:
    """A plain runnable, and LangGraph's server while it makes a graph, have a configuration and no stream writer."""
    token = var_child_runnable_config.set({"configurable": configurable})
    try:
        assert (await either.execute("echo quiet")).output == "quiet\n"
    finally:
        var_child_runnable_config.reset(token)


async def test_a_timeout_is_124_with_the_output_so_far(sandbox: sandgate.Sandbox, either: Either) -> None:
    answer = await either.execute("echo before; sleep 600", timeout=1)
    assert answer.exit_code == 124
    assert answer.output.startswith("before\nError: Command timed out after 1 seconds.")
    assert not sandbox.execs(only_alive=True)
    captured = await either.execute_with_offload(
        "seq 10000; sleep 600", "/large_tool_results/t", max_inline_bytes=1000, timeout=1
    )
    assert captured.offloaded
    assert captured.response.exit_code == 124
    assert "timed out" in captured.response.output
    assert (await either.execute("true", timeout=0)).exit_code == 0


async def test_what_fails_in_a_command_is_an_answer(either: Either) -> None:
    assert (await either.execute("no-such-program")).exit_code == 127
    assert (await either.execute("exit 9")).exit_code == 9
    assert (await either.execute("kill -9 $$")).exit_code == 137
    # Without stdin, and with a child in the background, it ends.
    assert (await either.execute("cat; sleep 600 & echo on")).output == "on\n"


async def test_a_command_that_is_none_is_the_agents_mistake(either: Either) -> None:
    """The tool makes an answer of a `ValueError`."""
    for command, timeout in (("a\0b", None), ("true", -1), ("x" * (1 << 20), None), ("echo \ud83d", None)):
        with pytest.raises(ValueError, match=r"NUL|negative|script|surrogate"):
            await either.execute(command, timeout=timeout)
    assert (await either.execute(f"echo {'x' * 200_000}")).output == "x" * 200_000 + "\n"


async def test_a_cancelled_run_kills_the_command(sandbox: sandgate.Sandbox) -> None:
    backend = SandgateBackend(sandbox)
    task = asyncio.ensure_future(backend.aexecute("touch started; sleep 600"))
    while (await backend.adownload_files(["/workspace/started"]))[0].error is not None:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not sandbox.execs(only_alive=True)
    assert (await backend.aexecute("echo alive")).output == "alive\n"


async def test_a_background_service_outlives_its_command(either: Either) -> None:
    await either.execute("(while :; do date >> tick; sleep 0.1; done) >/dev/null 2>&1 &")
    # Its shell makes the file before `date` has anything to write.
    while (await either.execute("test -s tick")).exit_code != 0:
        await asyncio.sleep(0.02)
    assert (await either.read("/workspace/tick")).error is None


# --- what is raised, what is answered ---


async def test_mistakes_with_files_are_answered(sandbox: sandgate.Sandbox, either: Either) -> None:
    sandbox.run("mkdir -p d; echo x > f; echo secret > locked; chmod 0 locked; mkfifo fifo")
    assert (await either.read("/workspace/none")).error == "File '/workspace/none': file_not_found"
    assert (await either.read("/workspace/d")).error == "File '/workspace/d': not_a_file"
    assert (await either.read("/workspace/fifo")).error == "File '/workspace/fifo': not_a_file"
    assert (await either.read("/workspace/locked")).error == "File '/workspace/locked': permission_denied"
    assert (await either.read("/workspace/f", 7)).error == (
        "File '/workspace/f': Line offset 7 exceeds file length (1 lines)"
    )
    assert (await either.ls("/workspace/none")).error == "Path '/workspace/none': path_not_found"
    assert (await either.ls("/workspace/f")).error == "Path '/workspace/f': not_a_directory"
    assert (await either.write("/etc/x", "")).error == "Failed to write file '/etc/x': permission_denied"
    assert (await either.write("/workspace/d", "")).error == "Failed to write file '/workspace/d': is_directory"
    assert (await either.edit("/workspace/none", "a", "b")).error == "Error: File '/workspace/none' not found"
    assert (await either.edit("/workspace/f", "", "b")).error.startswith("Error: old_string cannot be empty")
    assert (await either.edit("/workspace/f", "y", "b")).error == "Error: String not found in file: 'y'"
    assert "too long" in (await either.edit("/workspace/f", "x" * 2 * MIB, "b")).error
    assert (await either.delete("/workspace/none")).error == "Error: '/workspace/none' not found"
    assert (await either.glob("../*")).error.startswith("Path '.': invalid_pattern")
    assert (await either.grep("x", "/workspace/none")).error == "Path '/workspace/none': path_not_found"
    assert (await either.grep("x", "/workspace", "../*")).error.startswith("Path '/workspace': invalid_pattern")
    assert [match["line"] for match in (await either.grep("x", "/workspace/f", "../*")).matches] == [1]
    answers = await either.download_files(["/workspace/locked", "/workspace/d", "f", "/a\0b"])
    assert [answer.error for answer in answers] == ["permission_denied", "is_directory", "invalid_path", "invalid_path"]
    answers = await either.upload_files([("/etc/x", b""), ("/workspace/d", b""), ("/workspace/f/x", b"")])
    assert [answer.error for answer in answers] == ["permission_denied", "is_directory", "invalid_path"]


async def test_half_a_character_is_answered(sandbox: sandgate.Sandbox, either: Either) -> None:
    """Models write lone surrogates now and then. No file can hold them, and a run must not break."""
    await either.write("/workspace/f", "x")
    for half in ("\ud83d", "\udce9"):
        fault = f"the text is not valid Unicode: half of a surrogate pair, {half!a} at index 2"
        assert (await either.write("/workspace/g", f"a {half}")).error == (
            f"Failed to write file '/workspace/g': {fault}"
        )
        for old, new in ((f"x {half}", "y"), ("x", f"y {half}")):
            assert (await either.edit("/workspace/f", old, new)).error == (
                f"Error editing file '/workspace/f': {fault}"
            )
        assert (await either.glob(f"a {half}")).error == f"Path '.': {fault}"
        assert (await either.grep(f"a {half}")).error == f"Path '.': {fault}"
        assert (await either.grep("x", None, f"a {half}")).error == f"Path '.': {fault}"
    path = "/workspace/\ud83d"
    for name, arguments in (("read", ()), ("write", ("",)), ("edit", ("a", "b")), ("delete", ()), ("ls", ())):
        answer = await getattr(either, name)(path, *arguments)
        assert re.search(r": (invalid_path|the path is not valid Unicode)$", answer.error), name
    assert (await either.grep("x", path)).error == f"Path '{path}': invalid_path"
    assert [answer.error for answer in await either.download_files([path, "/workspace/f"])] == ["invalid_path", None]
    assert [answer.error for answer in await either.upload_files([(path, b"")])] == ["invalid_path"]
    assert sorted(entry.name for entry in sandbox.files.list("/workspace")) == ["f"]


async def test_a_lost_sandbox_is_raised_once_and_never_hidden(place: Place, kind: str) -> None:
    with place.client() as client:
        backend = SandgateBackend(client=client, name=new_name(), template=place.template, ttl=600, ephemeral=True)
        either = Either(backend, kind)
        await either.write("/workspace/f", "x")
        client.sandbox(backend.id).delete()
        with pytest.raises(errors.SandboxNotFound):
            await either.read("/workspace/f")
        # Whoever goes on has been told, and gets a new one.
        assert (await either.read("/workspace/f")).error == "File '/workspace/f': file_not_found"
        await either.close()
        assert backend.id not in [info.name for info in client.list()]


async def test_a_suspended_sandbox_is_resumed(place: Place, kind: str) -> None:
    with place.client() as client:
        backend = SandgateBackend(client=client, template=place.template, ttl=600)
        either = Either(backend, kind)
        await either.write("/workspace/f", "x")
        client.sandbox(backend.id).suspend(grace=0)
        assert (await either.execute("cat f")).output == "x"
        await either.close()


async def test_no_server_is_raised(kind: str, tmp_path: Any) -> None:
    client = sandgate.Client(f"unix://{tmp_path}/none")
    either = Either(SandgateBackend(client=client), kind)
    for name, argument in (("execute", "true"), ("ls", "/"), ("upload_files", [("/f", b"")])):
        with pytest.raises(errors.NoServer):
            await getattr(either, name)(argument)
    client.close()


# --- where things lie ---


@pytest.mark.parametrize("mode", ["plain", "root_dir", "virtual", "moved"])
async def test_the_middlewares_directories_work_in_every_mode(
    sandbox: sandgate.Sandbox, kind: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {} if mode in {"plain", "moved"} else {"root_dir": "/workspace/root"}
    if mode == "moved":
        # As in a sandbox where nobody may write to the root.
        monkeypatch.setattr("sandgate.deepagents.places.ROOT", "no-such-user")
    sandbox.files.mkdir("/workspace/root")
    backend = SandgateBackend(sandbox, **options, virtual_mode=mode == "virtual")
    either = Either(backend, kind)
    for root in ARTEFACTS:
        assert (await either.write(f"{root}/a/b.md", "kept\n")).error is None
        assert (await either.upload_files([(f"{root}/c", b"kept")]))[0].error is None
        assert [entry["path"] for entry in (await either.ls(root)).entries] == [f"{root}/a", f"{root}/c"]
        assert [match["path"] for match in (await either.grep("kept", root)).matches] == [f"{root}/a/b.md", f"{root}/c"]
        assert [match["path"] for match in (await either.glob("*.md", root)).matches] == [f"{root}/a/b.md"]
        assert (await either.edit(f"{root}/c", "kept", "changed")).occurrences == 1
        assert (await either.download_files([f"{root}/c"]))[0].content == b"changed"
    captured = await either.execute_with_offload("pwd; seq 9999", "/large_tool_results/id", max_inline_bytes=99)
    assert captured.offloaded
    # Another process has to find them too.
    again = Either(SandgateBackend(sandbox, **options, virtual_mode=mode == "virtual"), kind)
    lines = (await again.read("/large_tool_results/id")).file_data["content"].splitlines()
    assert lines[0] == ("/workspace" if mode in {"plain", "moved"} else "/workspace/root")
    assert (await again.read("/large_tool_results/id", 9999)).file_data["content"] == "9999"
    where = {"virtual": "/workspace/root", "moved": "/workspace/.deepagents"}.get(mode, "")
    assert sandbox.files.exists(f"{where}/conversation_history/c")
    assert (await either.delete("/blobs/a")).error is None


async def test_a_virtual_root_is_all_there_is(sandbox: sandgate.Sandbox, kind: str) -> None:
    sandbox.files.mkdir("/workspace/root")
    sandbox.files.symlink("/workspace/root/out", "/etc/passwd")
    either = Either(SandgateBackend(sandbox, root_dir="/workspace/root", virtual_mode=True), kind)
    assert (await either.write("/src/a.py", "x = 1\n")).error is None
    assert sandbox.files.read_text("/workspace/root/src/a.py") == "x = 1\n"
    assert [match["path"] for match in (await either.glob("*.py")).matches] == ["/src/a.py"]
    assert [match["path"] for match in (await either.grep("x = 1")).matches] == ["/src/a.py"]
    assert (await either.read("/../../etc/passwd")).error == "File '/../../etc/passwd': file_not_found"
    assert (await either.read("/out")).error == "File '/out': file_not_found"
    assert (await either.execute("pwd; cat src/a.py")).output == "/workspace/root\nx = 1\n"


async def test_a_root_dir_is_where_it_begins(sandbox: sandgate.Sandbox, kind: str) -> None:
    sandbox.files.write("/workspace/root/a.py", "x = 1\n")
    sandbox.files.write("/workspace/b.py", "x = 1\n")
    either = Either(SandgateBackend(sandbox, root_dir="/workspace/root"), kind)
    assert [match["path"] for match in (await either.grep("x")).matches] == ["/workspace/root/a.py"]
    assert (await either.read("a.py")).file_data["content"] == "x = 1"
    assert (await either.read("/workspace/b.py")).file_data["content"] == "x = 1"


def test_paths_go_in_and_come_out() -> None:
    moved = Places(moved_to="/w/.deepagents")
    assert moved.inward("/blobs/x") == "/w/.deepagents/blobs/x"
    assert moved.inward("/blobsy") == "/blobsy"
    assert moved.outward("/w/.deepagents/blobs/x") == "/blobs/x"
    assert Places().outward("/caf\udce9") == "/caf\ufffd"


# --- which sandbox ---


async def test_a_client_that_was_given_is_left_open(place: Place, kind: str) -> None:
    with place.client() as client:
        async with place.aclient() as aclient:
            for given in (client, aclient):
                backend = SandgateBackend(client=given, template=place.template, ttl=600)
                either = Either(backend, kind)
                assert (await either.execute("echo made")).output == "made\n"
                await either.close()
                assert backend.id not in [info.name for info in await done(given.list())]
                if (given is client) == (kind == "async"):
                    with pytest.raises(errors.ClosedError):
                        await either.execute("true")


async def test_either_kind_of_sandbox_and_client_will_do(place: Place, kind: str) -> None:
    async with place.aclient() as client:
        async with await client.create(new_name(), template=place.template, ttl=600) as sandbox:
            either = Either(SandgateBackend(sandbox), kind)
            assert (await either.execute("echo held")).output == "held\n"
            await either.close()
            assert (await client.get(sandbox.name)).ready
            await Either(SandgateBackend(sandbox, ephemeral=True), kind).close()
            assert sandbox.name not in [info.name for info in await client.list()]
        async with SandgateBackend(client=client, template=place.template, ttl=600) as backend:
            assert (await Either(backend, kind).execute("echo made")).output == "made\n"
            assert (await client.get(backend.id)).ready
        assert backend.id not in [info.name for info in await client.list()]


def test_threads_have_legal_names() -> None:
    names = {thread_name(thread) for thread in ("", "a", "A", "ä/ö ü\n", "x" * 10_000, "\ud800")}
    assert len(names) == 6
    assert all(len(name) <= 40 and name.replace("-", "").isalnum() and name.isascii() for name in names)
    assert thread_name("a", "team-red").startswith("team-red-")
    for prefix in ("", "-a", "a-", "A", "1a", "a" * 20):
        with pytest.raises(ValueError, match="can't begin"):
            SandgateBackend.for_thread("a", prefix=prefix)


async def test_a_sandbox_is_made_as_it_is_wanted(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = (sandgate.Client if kind == "sync" else sandgate.AsyncClient)("unix:///none")
    asked: list[dict[str, Any]] = []

    def create(name: str, **wishes: Any) -> None:
        asked.append({"name": name} | wishes)
        raise InterruptedError

    monkeypatch.setattr(client, "create", create)
    wishes: dict[str, Any] = {
        "template": "python",
        "labels": {"a": "b"},
        "env": {"C": "d"},
        "ttl": 60,
        "idle": 30,
        "warm_pool": "large",
        "connection": "gateway",
        "volumes": [sandgate.Volume("data", 1 << 30)],
    }
    for backend in (
        SandgateBackend(client=client, name="demo", **wishes),
        SandgateBackend.for_thread("demo", client=client, **wishes),
    ):
        with pytest.raises(InterruptedError):
            await Either(backend, kind).execute("true")
    always = {"keep": True, "auto_resume": True}
    assert asked == [{"name": name} | wishes | always for name in ("demo", thread_name("demo"))]


def test_wrong_options_are_told_at_once(sandbox: sandgate.Sandbox) -> None:
    for options, match in (
        ({"name": "x"}, "neither client nor name"),
        ({"root_dir": "relative"}, "begins with a slash"),
        ({"virtual_mode": True}, "needs a root_dir"),
        ({"max_output_bytes": 1 << 30}, "max_output_bytes"),
        ({"max_saved_bytes": 4096}, "max_saved_bytes"),
        ({"connection": "pigeon"}, "connection is one of"),
    ):
        with pytest.raises(ValueError, match=match):
            SandgateBackend(sandbox, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        SandgateBackend.for_thread("a", name="b")
