"""Parts that need no server: where it is, what was seen, how long to wait."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import done

from sandgate import AsyncClient, Client, ConnectionMode, Ended, Exited, Gap, Offsets, Output, Started, Volume, errors
from sandgate._core import channel, endpoint, io_async, io_sync, retry, server, values
from sandgate._core.follow import ExecFollow
from sandgate._core.requests import Target
from sandgate.v1 import exec_pb2, sandbox_pb2
from sandgate.v1 import sandbox_service_pb2 as service

if TYPE_CHECKING:
    from collections.abc import Iterator

OUT, ERR = exec_pb2.OUTPUT_STREAM_STDOUT, exec_pb2.OUTPUT_STREAM_STDERR

# --- where the server is ---


@pytest.mark.parametrize(
    "text, shown",
    [
        ("http://127.0.0.1:7263", "http://127.0.0.1:7263"),
        ("http://127.0.0.1:7263/", "http://127.0.0.1:7263"),
        ("localhost:80", "http://localhost:80"),
        ("http://[::1]:7263", "http://[::1]:7263"),
        ("unix:///run/a b.sock", "unix:///run/a b.sock"),
        ("unix:/run/x", "unix:///run/x"),
    ],
)
def test_addresses_are_read(text: str, shown: str) -> None:
    assert endpoint.parse_address(text) == shown


@pytest.mark.parametrize(
    "text",
    ["http://", "http://host", "https://host:1", "ftp://h:1", "unix://relative", "http://h:1/path", "http://h:99999"],
)
def test_bad_addresses_are_told(text: str) -> None:
    with pytest.raises(errors.ConfigError, match="expected http://HOST:PORT"):
        endpoint.parse_address(text)


def test_the_state_directory_follows_the_user() -> None:
    home = {"HOME": "/home/u"}
    assert endpoint.state_dir(home, root=True) == Path("/var/lib/sandgate")
    assert endpoint.state_dir(home, root=False) == Path("/home/u/.local/state/sandgate")
    assert endpoint.state_dir(home | {"XDG_STATE_HOME": "/s"}, root=False) == Path("/s/sandgate")
    assert endpoint.state_dir(home | {"XDG_STATE_HOME": "rel"}, root=False) == Path("/home/u/.local/state/sandgate")
    assert endpoint.state_dir({"SANDGATE_STATE_DIR": "/d"}, root=True) == Path("/d")


def test_the_socket_comes_before_tcp_and_the_token_stays_local(tmp_path: Path) -> None:
    env = {"SANDGATE_STATE_DIR": str(tmp_path)}
    assert endpoint.resolve(env=env) == endpoint.Endpoint(endpoint.DEFAULT_ADDRESS)
    (tmp_path / "token").write_text("s3cret\n")
    assert endpoint.resolve(env=env).metadata == (("authorization", "Bearer s3cret"),)
    for address, token in [
        ("http://localhost:1", "s3cret"),
        ("http://[::1]:1", "s3cret"),
        ("http://10.0.0.1:1", None),
        ("http://example.org:1", None),
        ("unix:///x", None),
    ]:
        assert endpoint.resolve(env=env | {"SANDGATE_ADDR": address}).token == token
        assert endpoint.resolve(address, "mine", env).token == "mine"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sandgate.sock"))
        found = endpoint.resolve(env=env)
    assert found == endpoint.Endpoint(f"unix://{tmp_path}/sandgate.sock")
    assert "s3cret" not in repr(endpoint.resolve("localhost:1", env=env))
    with pytest.raises(errors.ConfigError, match="characters"):
        endpoint.resolve("localhost:1", "a\nb", env)


# --- what was seen ---


def event(**fields: object) -> service.FollowExecResponse:
    return service.FollowExecResponse(event=exec_pb2.ExecEvent(**fields))  # pyright: ignore[reportArgumentType]


def output(stream: exec_pb2.OutputStream.ValueType, offset: int, data: bytes) -> service.FollowExecResponse:
    return event(output=exec_pb2.ExecOutput(stream=stream, offset=offset, data=data))


def test_bytes_come_once_whatever_is_repeated() -> None:
    follow = ExecFollow(Target("s"), "e")
    told: list[object] = []
    for message in (
        output(OUT, 0, b"abc"),
        output(OUT, 0, b"abc"),
        output(OUT, 1, b"bcde"),
        output(ERR, 0, b"x"),
        output(OUT, 5, b""),
        output(OUT, 5, b"f"),
    ):
        told += follow.take(message)
    assert [(item.stream, item.offset, item.data) for item in told if isinstance(item, Output)] == [
        ("stdout", 0, b"abc"),
        ("stdout", 3, b"de"),
        ("stderr", 0, b"x"),
        ("stdout", 5, b"f"),
    ]
    assert follow.seen == Offsets(6, 1)
    offsets = getattr(follow.request().targets[0], "from").offsets
    assert (offsets.stdout, offsets.stderr) == (6, 1)


def test_what_is_missing_is_told() -> None:
    follow = ExecFollow(Target("s"), "e", Offsets(10, 0))

    def gap(begin: int, end: int) -> service.FollowExecResponse:
        return event(gap=exec_pb2.ExecGap(stream=OUT, to=end, **{"from": begin}))

    told: list[object] = []
    for message in (gap(5, 10), gap(8, 12), output(OUT, 12, b"a"), output(OUT, 20, b"b")):
        told += follow.take(message)
    told += follow.take(event(ended=exec_pb2.ExecEnded(total=exec_pb2.ExecOffsets(stdout=21, stderr=3))))
    assert [type(item) for item in told] == [Gap, Output, Gap, Output, Gap, Ended]
    assert [(item.begin, item.end) for item in told if isinstance(item, Gap)] == [(10, 12), (13, 20), (0, 3)]
    assert follow.ended


def test_life_is_told_once() -> None:
    follow = ExecFollow(Target("s"), "e")
    told: list[object] = []
    for _ in range(2):
        told += follow.take(event(started=exec_pb2.ExecStarted(pid=1)))
        told += follow.take(event(exited=exec_pb2.ExecExit(code=0)))
        told += follow.take(event(heartbeat=exec_pb2.Heartbeat()))
    assert [type(item) for item in told] == [Started, Exited]


# --- how long to wait ---


def test_patience_counts_from_the_first_failure() -> None:
    outage = retry.Outage(0)
    with pytest.raises(errors.PatienceEnded):
        outage.failed(errors.ConnectionLost("gone"))
    outage = retry.Outage(60)
    for tries in range(20):
        most = min(retry.FIRST_DELAY * 2**tries, retry.LONGEST_DELAY)
        assert most / 2 <= outage.failed(errors.ConnectionLost("gone")) <= most
    assert outage.failed(errors.Stopping("bye", retry_after=100)) == retry.LONGEST_DELAY


def test_what_is_no_outage_is_told_at_once() -> None:
    with pytest.raises(errors.SandboxRestarted):
        retry.Outage(60).failed(errors.SandboxRestarted("gone"))
    with pytest.raises(errors.NoServer):
        retry.Outage(60, contacted=False).failed(errors.NoServer("none"))
    assert retry.Outage(60).failed(errors.NoServer("none")) > 0


def test_a_silent_stream_is_given_up() -> None:
    class Call:
        cancelled = 0

        def __iter__(self) -> Iterator[None]:
            return self

        def __next__(self) -> None:
            raise StopIteration

        def cancel(self) -> None:
            self.cancelled += 1

    call = Call()
    watchdog = io_sync.Watchdog(call)
    watchdog.look()
    assert not watchdog.fired
    watchdog.heard_at -= channel.SILENCE + 1
    watchdog.look()
    assert (watchdog.fired, call.cancelled) == (True, 1)
    assert io_sync.read(call, watchdog) is None


def test_a_silent_stream_is_given_up_by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a server that takes the connection, and says nothing."""
    monkeypatch.setattr(io_async, "SILENCE", 0.2)

    async def follow(address: str) -> None:
        async with AsyncClient(address, patience=1) as client:
            with pytest.raises(errors.PatienceEnded):
                await anext(client.watch())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(follow(f"http://127.0.0.1:{listener.getsockname()[1]}"))


# --- values ---


def test_values_become_those_of_the_wire() -> None:
    assert values.path_fields("ü") == {"path": "ü"}
    assert values.path_fields(b"\xff", "to") == {"to_raw": b"\xff"} == values.path_fields("\udcff", "to")
    assert values.path_fields(Path("/a")) == {"path": "/a"}
    span = values.to_duration(timedelta(milliseconds=1500))
    assert span is not None
    assert (span.seconds, span.nanos) == (1, 500_000_000)
    assert values.argv(["a", "\udcff"])["argv"].args_raw == [b"a", b"\xff"]
    for signal in (15, "TERM", "sigterm"):
        assert values.signal_number(signal) == 15
    assert values.new_id() != values.new_id()


# --- what is asked for ---


@pytest.mark.parametrize("kind", [Client, AsyncClient])
async def test_a_sandbox_is_asked_for_as_it_is_wanted(
    kind: type[Client | AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = kind("unix:///none")
    asked: list[service.CreateRequest] = []

    def send(_: object, request: service.CreateRequest) -> None:
        asked.append(request)
        raise InterruptedError

    monkeypatch.setattr(client._transport, "repeat", send)  # pyright: ignore[reportPrivateUsage]
    wishes: dict[str, Any] = {
        "template": "python",
        "labels": {"a": "b"},
        "ttl": 60,
        "idle": timedelta(minutes=5),
        "warm_pool": "large",
        "connection": "in_cluster",
        "volumes": [Volume("data", 1 << 30), Volume("fast", 5, "ssd")],
    }
    ways: list[dict[str, Any]] = [{}, wishes, {"connection": ConnectionMode.TUNNEL}]
    for given in ways:
        with pytest.raises(InterruptedError):
            await done(client.create("demo", **given, wait=7))
    bare, full, other = asked
    assert bare == service.CreateRequest(name="demo", max_wait=bare.max_wait)
    assert 6 < values.to_seconds(bare.max_wait) <= 7
    assert full == service.CreateRequest(
        name="demo",
        template="python",
        labels={"a": "b"},
        ttl=values.to_duration(60),
        idle_limit=values.to_duration(300),
        max_wait=full.max_wait,
        warm_pool="large",
        connection_mode=sandbox_pb2.CONNECTION_MODE_IN_CLUSTER,
        volumes=[service.Volume(name="data", bytes=1 << 30), service.Volume(name="fast", bytes=5, storage_class="ssd")],
    )
    assert other.connection_mode == sandbox_pb2.CONNECTION_MODE_TUNNEL
    for wrong in ("unknown", "carrier pigeon"):
        with pytest.raises(ValueError, match="connection is one of local, tunnel"):
            await done(client.create("demo", connection=wrong))


# --- the server's program ---


def test_the_program_is_found(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "sandgate-server"
    program.parent.mkdir()
    program.touch(0o755)
    named = {"SANDGATE_SERVER_BIN": str(program), "PATH": ""}
    assert server.find_program(named) == program
    with pytest.raises(errors.ConfigError, match="names no program"):
        server.find_program({"SANDGATE_SERVER_BIN": str(tmp_path / "none")})
    assert server.find_program({"PATH": str(program.parent)}) == program
    built = tmp_path / "target" / "debug" / "sandgate-server"
    built.parent.mkdir(parents=True)
    built.touch(0o755)
    assert server.find_program({"PATH": "", "CARGO_TARGET_DIR": str(tmp_path / "target")}) == built
    assert server.find_program({"PATH": "", "HOME": str(tmp_path)}) is None
    runtime = tmp_path / "target" / f"{os.uname().machine}-unknown-linux-musl" / "release" / "sandgate-runtime"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    assert server.find_companion(built, "sandgate-runtime") == runtime
    assert server.find_companion(built, "sandgate-monitor") is None
