"""Commands in a sandbox, by both clients."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support import Within, done, each, until

import sandgate
from sandgate import (
    Ended,
    ExecState,
    Exited,
    Offsets,
    Output,
    OutputBudget,
    OutputStream,
    Pty,
    SaveOutput,
    Started,
    StartFailed,
    StartFailureReason,
    errors,
)

if TYPE_CHECKING:
    from support import Server


async def test_a_command_is_run_to_its_end(sandbox: Any) -> None:
    result = await done(sandbox.run("echo out; echo err >&2; exit 3"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.ok
    assert not result.truncated
    result = await done(sandbox.run(["printf", "%s|", "a b", "$HOME", ""]))
    assert result.stdout == "a b|$HOME||"
    result = await done(
        sandbox.run(
            "pwd; id -u; echo $A$B; echo e >&2", cwd="/tmp", env={"A": "1", "B": "ü"}, user="0", merge_stderr=True
        )
    )
    assert (result.stdout, result.stderr) == ("/tmp\n0\n1ü\ne\n", "")
    assert (await done(sandbox.run(["/usr/bin/env"], clear_env=True, env={"X": "y"}))).stdout == "X=y\n"
    assert (await done(sandbox.run("kill -9 $$"))).exit_code == 137
    assert (await done(sandbox.run(r"printf '\377\000'"))).stdout_bytes == b"\xff\x00"


async def test_what_cannot_be_started_is_a_result(sandbox: Any) -> None:
    result = await done(sandbox.run(["no-such-program"]))
    assert result.start_failure.reason is StartFailureReason.NOT_FOUND
    assert (result.exit_code, result.exit) == (127, None)
    assert (await done(sandbox.run("true", cwd="/none"))).start_failure.reason is StartFailureReason.BAD_CWD
    events = [event async for event in each(await done(sandbox.exec(["/etc/passwd"])))]
    assert isinstance(events[-1], StartFailed)
    assert events[-1].failure.exit_code == 126
    assert (await done(sandbox.run(["no-such"], input="x"))).exit_code == 127


async def test_check_raises_with_the_result(sandbox: Any) -> None:
    assert (await done(sandbox.run("true", check=True))).ok
    with pytest.raises(errors.CommandFailed, match="no such luck") as caught:
        await done(sandbox.run("echo no such luck >&2; exit 7", check=True))
    assert caught.value.result.exit_code == 7
    with pytest.raises(errors.CommandFailed):
        await done(sandbox.run(["no-such-program"], check=True))


async def test_a_timeout_keeps_the_output_so_far(sandbox: Any) -> None:
    result = await done(sandbox.run("echo before; sleep 100", timeout=0.3, kill_grace=0.1))
    assert result.timed_out
    assert result.stdout == "before\n"
    assert result.exit_code == 128 + signal.SIGTERM


async def test_what_is_left_behind_does_not_hold_the_answer_up(sandbox: Any) -> None:
    result = await done(sandbox.run("sleep 100 & echo done"))
    assert result.stdout == "done\n"
    alive = await done(sandbox.execs(only_alive=True))
    assert [info.id for info in alive] == [result.id]
    assert await done(sandbox.signal_exec(result.id, "KILL")) == 1


async def test_output_comes_as_it_is_written(sandbox: Any) -> None:
    texts: dict[str, list[str]] = {"out": [], "err": []}
    script = r"printf 'a\303'; sleep 0.2; printf '\274b'; echo e >&2; sleep 0.2; printf '\303'"
    result = await done(sandbox.run(script, on_stdout=texts["out"].append, on_stderr=texts["err"].append))
    # No character is split, and what is cut short is told at the end.
    assert texts == {"out": ["a", "üb", "\N{REPLACEMENT CHARACTER}"], "err": ["e\n"]}
    assert result.stdout_bytes == b"a\xc3\xbcb\xc3"


async def test_a_callback_may_be_a_coroutine(async_sandbox: Any) -> None:
    texts: list[str] = []

    async def take(text: str) -> None:
        await asyncio.sleep(0)
        texts.append(text)

    await async_sandbox.run("echo hello", on_stdout=take)
    assert texts == ["hello\n"]


async def test_input_is_fed(sandbox: Any) -> None:
    content = b"0123456789" * 300_000
    result = await done(sandbox.run("sha256sum; sleep 0.1", input=content))
    assert result.stdout.split()[0] == hashlib.sha256(content).hexdigest()
    assert (await done(sandbox.run("cat", input=content))).stdout_bytes == content
    assert (await done(sandbox.run("exec <&-; sleep 0.2", input=content))).ok
    assert (await done(sandbox.run("head -c 3", input="abcdef"))).stdout == "abc"


async def test_all_output_is_given_or_what_the_budget_allows(sandbox: Any) -> None:
    # More than a message of gRPC may have.
    whole = "".join(f"{number}\n" for number in range(1, 700_001))
    result = await done(sandbox.run("seq 700000; echo err >&2"))
    assert result.stdout == whole
    assert (result.stderr, result.truncated) == ("err\n", False)
    result = await done(sandbox.run("seq 700000", budget=OutputBudget(head=100, tail=100)))
    assert result.truncated
    assert whole.startswith(result.stdout_output.head.decode())
    assert whole.endswith(result.stdout_output.tail.decode())
    output = result.stdout_output
    assert len(output.head) + len(output.tail) + output.omitted_bytes == output.total_bytes == len(whole)

    live = await done(sandbox.run("seq 700000", budget=OutputBudget(head=100, tail=100), on_stdout=len))
    assert live.stdout_output == output
    saved = SaveOutput("/tmp/out/log", after=1000)
    result = await done(sandbox.run("seq 700000", budget=OutputBudget(100, 100), save_output=saved))
    assert result.saved_path == "/tmp/out/log"
    assert await done(sandbox.files.read_text("/tmp/out/log")) == whole
    result = await done(sandbox.run("seq 1000", save_output=saved, on_stdout=len))
    assert result.saved_path == "/tmp/out/log"
    assert await done(sandbox.files.read_text("/tmp/out/log")) == result.stdout
    result = await done(sandbox.run("cat", save_output=saved, input="x" * 5000))
    assert result.saved_path == "/tmp/out/log"
    assert (await done(sandbox.run("echo", save_output=saved))).saved_path is None
    for options in ({}, {"on_stdout": len}):
        saved = SaveOutput("/tmp/out/log", after=1000, limit=5000)
        result = await done(sandbox.run("seq 700000", save_output=saved, **options))
        assert (result.saved_path, result.saved_bytes, result.stdout) == ("/tmp/out/log", 5000, whole)
        assert result.save_error == "the file ends after 5000 bytes, the most it was to hold"
        assert await done(sandbox.files.read_text("/tmp/out/log")) == whole[:5000]


async def test_events_come_in_order(sandbox: Any) -> None:
    exec = await done(sandbox.exec("echo one; sleep 0.2; echo two; sleep 0.2 && echo late &"))
    events = [event async for event in each(exec)]
    kinds: list[type] = [type(event) for event in events]
    assert kinds[0] is Started
    assert kinds[-1] is Ended
    assert kinds.index(Exited) < len(kinds) - 2
    assert b"".join(event.data for event in events if isinstance(event, Output)) == b"one\ntwo\nlate\n"
    assert events[-1].total == exec.seen == Offsets(13, 0)
    assert events[0].pid == exec.pid > 0


async def test_stdin_is_written_and_closed(sandbox: Any) -> None:
    async with Within(await done(sandbox.exec("cat; echo end", stdin=True))) as exec:
        await done(exec.write("one "))
        await done(exec.write(b"two"))
        await done(exec.close_stdin())
        result = await done(exec.output())
        assert result.stdout == "one twoend\n"
        with pytest.raises(errors.StdinClosed):
            await done(exec.write("more"))
    closed = await done(sandbox.exec("cat"))
    with pytest.raises(errors.StdinNotOpen):
        await done(closed.write("x"))


async def test_a_terminal_has_a_size_and_signals(sandbox: Any) -> None:
    exec = await done(sandbox.exec("trap 'stty size' WINCH; stty size; while :; do sleep 0.1; done", pty=Pty(100, 30)))
    seen = b""
    async for event in each(exec):
        if isinstance(event, Output):
            seen += event.data
            if seen.endswith(b"30 100\r\n"):
                await done(exec.resize(120, 40))
            elif seen.endswith(b"40 120\r\n"):
                await done(exec.write("\x03"))
        elif isinstance(event, Exited):
            assert event.exit.signal == signal.SIGINT
    pipe = await done(sandbox.exec(["sleep", "100"]))
    with pytest.raises(errors.PtyMissing):
        await done(pipe.resize(1, 1))
    assert await done(pipe.signal(signal.SIGTERM)) == 1
    assert (await done(pipe.wait())).signal == signal.SIGTERM
    assert await done(pipe.kill()) == 0
    with pytest.raises(errors.ExecNotRunning):
        await done(pipe.signal("term"))


async def test_a_command_is_left_and_found_again(sandbox: Any) -> None:
    exec = await done(sandbox.exec("echo one; read line; echo $line", stdin=True))
    async for event in each(exec):
        if isinstance(event, Output):
            break
    exec.detach()
    assert [event async for event in each(exec)] == []
    found = await done(sandbox.attach_exec(exec.id, seen=exec.seen, writer=exec.writer))
    await done(found.write("two\n"))
    result = await done(found.output())
    assert result.stdout == "two\n"
    info = await done(sandbox.exec_info(exec.id))
    assert info.state is ExecState.EXITED
    assert info.exit.code == 0
    assert exec.id in [info.id for info in await done(sandbox.execs())]
    with pytest.raises(errors.ExecNotFound):
        await done(sandbox.attach_exec("never"))
    again = await done(sandbox.attach_exec(exec.id))
    assert (await done(again.output())).stdout == "one\ntwo\n"


async def test_a_read_that_is_cancelled_takes_nothing_away(async_sandbox: Any) -> None:
    exec = await async_sandbox.exec("for i in 1 2 3; do echo $i; until [ -e $i ]; do sleep 0.02; done; done")
    seen = b""
    cancelled = 0
    async for event in exec:
        if isinstance(event, Output):
            seen += event.data
            # The command waits, so this one waits too.
            reading = asyncio.ensure_future(anext(exec))
            await asyncio.sleep(0.05)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            cancelled += 1
            await async_sandbox.files.write(str(cancelled), "")
    assert (seen, cancelled) == (b"1\n2\n3\n", 3)


async def test_a_run_may_take_longer_than_a_call(
    sandbox: Any, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proxies cut calls that are silent for long, so none is."""
    monkeypatch.setattr("sandgate._core.requests.ONE_CALL", 0.2)
    result = await done(sandbox.run("echo run >> runs; sleep 1.5; cat runs"))
    assert (result.exit_code, result.stdout) == (0, "run\n")
    assert calls.count("Run") > 2


async def test_an_id_runs_once(sandbox: Any) -> None:
    for _ in range(2):
        result = await done(sandbox.run("echo ran >> count; cat count", id="once"))
        assert result.stdout == "ran\n"
    with pytest.raises(errors.ExecAlreadyExists):
        await done(sandbox.run("another", id="once"))


async def test_an_error_in_a_callback_kills_the_command(sandbox: Any) -> None:
    def fail(_: str) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError):
        await done(sandbox.run("echo x; sleep 1000", id="failing", on_stdout=fail))
    assert (await done(sandbox.exec_info("failing"))).exit.signal == signal.SIGKILL


@pytest.mark.parametrize("live", [False, True])
async def test_a_cancelled_run_kills_the_command_and_not_the_sandbox(async_sandbox: Any, live: bool) -> None:
    sandbox = async_sandbox
    task = asyncio.create_task(sandbox.run("sleep 1000", id="long", on_stdout=print if live else None))
    while not await sandbox.execs():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await sandbox.exec_info("long")).exit.signal == signal.SIGKILL
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.run("sleep 1000", id="slow"), 0.3)
    assert (await sandbox.exec_info("slow")).exit.signal == signal.SIGKILL
    assert (await sandbox.run("echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("live", ["", ", on_stdout=print"])
def test_ctrl_c_kills_the_command_and_not_the_sandbox(
    server: Server, sync_sandbox: sandgate.Sandbox, live: str
) -> None:
    script = (
        "import sandgate, sys\n"
        f"sandbox = sandgate.Client({server.address!r}).attach({sync_sandbox.name!r})\n"
        "try:\n"
        f"    sandbox.run('sleep 1000', id='long'{live})\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(42)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], env={"PYTHONPATH": ":".join(sys.path)}) as process:
        try:
            until(lambda: bool(sync_sandbox.execs(only_alive=True)))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 42
        finally:
            process.kill()
    exit = sync_sandbox.exec_info("long").exit
    assert exit is not None
    assert exit.signal == signal.SIGKILL
    assert sync_sandbox.run("echo alive").stdout == "alive\n"


def test_results_read_well(sync_sandbox: sandgate.Sandbox) -> None:
    assert repr(sync_sandbox.run("echo hi; exit 2")) == "<RunResult exit 2, stdout 'hi\\n', stderr ''>"
    assert "no such program" in repr(sync_sandbox.run(["no-such-program"]))
    exec = sync_sandbox.exec("echo hello")
    assert exec.id in repr(exec)
    assert "echo hello" in repr(exec)
    outputs = [event for event in exec if isinstance(event, Output)]
    assert (outputs[0].stream, outputs[0].text) == (OutputStream.STDOUT, "hello\n")
