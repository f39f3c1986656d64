"""The life of a sandbox, by both clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support import Within, done, each, new_name

import sandgate
from sandgate import Changed, Deleted, EndCause, SandboxState, Snapshot, Synced, errors


async def test_one_is_made_found_and_deleted(client: Any) -> None:
    name = new_name()
    sandbox = await done(client.create(name, labels={"team": "docs"}, env={"MODE": "test"}, ttl=600, idle=300))
    assert sandbox.created
    assert not sandbox.resumed
    assert (sandbox.info.ready, sandbox.info.labels, sandbox.info.idle_limit) == (True, {"team": "docs"}, 300.0)
    assert abs((sandbox.info.deadline - datetime.now(UTC)) - timedelta(seconds=600)) < timedelta(seconds=60)
    assert (await done(sandbox.run("echo $MODE"))).stdout == "test\n"

    again = await done(client.create(name))
    assert not again.created
    assert again.info.uid == sandbox.info.uid
    attached = await done(client.attach(name))
    assert attached.incarnation == sandbox.incarnation
    info = await done(client.get(name))
    assert info.usage.processes > 0
    assert name in [item.name for item in await done(client.list("team=docs"))]
    assert name not in [item.name for item in await done(client.list("team=other"))]

    removed = await done(sandbox.delete())
    assert removed.existed
    assert removed.uid == sandbox.info.uid
    assert not (await done(attached.delete())).existed
    with pytest.raises(errors.SandboxNotFound) as caught:
        await done(client.get(name))
    assert caught.value.reason == "SANDBOX_NOT_FOUND"
    assert caught.value.request_id
    assert caught.value.request_id in str(caught.value)


async def test_without_a_name_the_server_makes_one_up(client: Any) -> None:
    async with Within(await done(client.create(deadline=datetime.now(UTC) + timedelta(hours=1)))) as sandbox:
        assert sandbox.name
        assert sandbox.info.deadline < datetime.now(UTC) + timedelta(hours=2)
    with pytest.raises(errors.SandboxNotFound):
        await done(client.get(sandbox.name))


async def test_a_block_deletes_unless_it_is_to_keep(client: Any) -> None:
    async with Within(await done(client.create(new_name(), keep=True))) as kept:
        pass
    async with Within(await done(client.attach(kept.name))) as attached:
        pass
    assert (await done(client.get(kept.name))).ready
    with pytest.raises(KeyError):
        async with Within(await done(client.attach(kept.name, keep=False))):
            raise KeyError
    with pytest.raises(errors.SandboxNotFound):
        await done(attached.refresh())


async def test_a_later_sandbox_of_the_same_name_is_spared(client: Any) -> None:
    name = new_name()
    first = await done(client.create(name))
    await done(client.sandbox(name).delete())
    async with Within(await done(client.create(name))) as second:
        assert not (await done(first.delete())).existed
        assert (await done(second.refresh())).ready


async def test_suspended_it_keeps_its_files_and_says_so(client: Any, sandbox: Any) -> None:
    await done(sandbox.files.write("note", "kept"))
    pinned = sandbox.expecting()
    running = await done(sandbox.exec("sleep 1000"))
    assert (await done(sandbox.suspend(grace=0))).state is SandboxState.SUSPENDED
    with pytest.raises(errors.SandboxRestarted):
        await done(running.wait())
    with pytest.raises(errors.SandboxSuspended):
        await done(sandbox.run("true"))
    with pytest.raises(errors.SandboxRestarted):
        await done(pinned.run("true"))

    waking = client.sandbox(sandbox.name, auto_resume=True)
    assert (await done(waking.run("cat note"))).stdout == "kept"
    info = await done(sandbox.refresh())
    assert info.last_end.cause is EndCause.SUSPENDED
    assert info.incarnation != pinned.incarnation
    with pytest.raises(errors.SandboxRestarted) as caught:
        await done(pinned.files.write("note", "changed"))
    assert caught.value.metadata["incarnation"] == pinned.incarnation

    await done(sandbox.suspend(grace=timedelta(0)))
    attached = await done(client.attach(sandbox.name))
    assert attached.resumed
    await done(sandbox.suspend(grace=0))
    assert (await done(sandbox.resume())).ready
    assert (await done(sandbox.wait_ready(10))).ready


async def test_only_what_is_given_is_changed(sandbox: Any) -> None:
    before = sandbox.info
    info = await done(sandbox.update(labels={"stage": "late"}, etag=before.etag))
    assert (info.labels, info.deadline) == ({"stage": "late"}, before.deadline)
    with pytest.raises(errors.EtagMismatch) as caught:
        await done(sandbox.update(labels={}, etag=before.etag))
    assert caught.value.metadata["etag"] == info.etag
    info = await done(sandbox.update(ttl=timedelta(hours=2), idle=60))
    assert (info.labels, info.idle_limit) == ({"stage": "late"}, 60.0)
    assert info.deadline > before.deadline
    info = await done(sandbox.update(idle=None, deadline=before.deadline))
    assert (info.idle_limit, info.deadline) == (None, before.deadline)


async def test_changes_are_told(client: Any) -> None:
    label = new_name()
    seen: list[Any] = []
    async with Within(client.watch(f"test={label}")) as watch:
        sandbox: Any = None
        async for event in each(watch):
            seen.append(event)
            match event:
                case Synced():
                    sandbox = await done(client.create(label, labels={"test": label}))
                case Changed(info) if info.ready:
                    await done(sandbox.delete())
                case Deleted():
                    break
                case _:
                    pass
    assert seen[:2] == [Snapshot(), Synced()]
    assert seen[-1].name == label
    assert seen[-1].cause is EndCause.DELETED


async def test_what_is_refused_has_its_reason(client: Any) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        await done(client.create("No Name"))
    assert caught.value.field == "name"
    with pytest.raises(errors.TemplateNotFound):
        await done(client.create(new_name(), template="none-such"))
    with pytest.raises(errors.SandboxNotFound):
        await done(client.attach(new_name()))
    with pytest.raises(ValueError, match="one of them"):
        await done(client.create(ttl=1, deadline=datetime.now(UTC)))


async def test_reprs_are_useful_and_closed_is_closed(client: Any, sandbox: Any) -> None:
    assert sandbox.name in repr(sandbox)
    assert "ready" in repr(sandbox)
    assert "ends in 10 m" in repr(sandbox.info)
    assert client.address in repr(client)
    other = type(client)(client.address)
    await done(other.list())
    await done(other.close())
    with pytest.raises(errors.ClosedError):
        await done(other.list())


async def test_not_waiting_answers_at_once(client: Any) -> None:
    sandbox = await done(client.create(new_name(), wait=False))
    try:
        assert (await done(sandbox.wait_ready())).ready
        assert (await done(client.attach(sandbox.name, wait=False))).info.ready
        assert (await done(client.create(sandbox.name, wait=5))).info.ready
    finally:
        await done(sandbox.delete())


def test_both_clients_have_the_same_surface() -> None:
    for name in ("Client", "Sandbox", "Files", "Exec", "Stream"):
        both = [getattr(sandgate, prefix + name) for prefix in ("", "Async")]
        public = [{item for item in dir(kind) if not item.startswith("_")} for kind in both]
        assert public[0] == public[1], name
