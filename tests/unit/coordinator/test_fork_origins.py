"""Before a fork starts, its origin is read, and what it takes over is put where it lasts as long as the fork."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.chassis.blobs import BlobMissing, BlobRef, DirectoryBlobs, is_blob_of, month_of
from services.chassis.identity.named_tokens import NamedTokens
from services.coordinator.app import fork_origins
from services.coordinator.app.fork_origins import ForkOrigins, OriginGone, OriginNotRead
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.ports import Version
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.values import OutputRef
from services.coordinator.peers.dispatch import granted_execution
from services.coordinator.rpc.run_messages import forwarded_command
from services.coordinator.store.snapshots import restored
from tests.support.memory_journal import JournalRow, JournalTables, MemoryReads
from tests.support.probe import until
from tests.support.story import EXECUTION_ID, Story, chain, node, started
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

LATER_ID = "019f0000-0000-7c3d-8e4f-1234567890ab"
SAME_MONTH_ID = EXECUTION_ID[:-1] + "c"
WORKSPACE = "w"


class World:
    """The origin is one execution that a test has played."""

    def __init__(self, directory: Path) -> None:
        self.blobs = DirectoryBlobs(directory)
        self.tables = JournalTables()
        self.versions: dict[str, Version] = {}
        reads = MemoryReads(self.tables)
        self.origins = ForkOrigins(reads, JournalWalks(reads, self, restored), self.blobs)

    def cached(self, version_id: str) -> Version | None:
        return self.versions.get(version_id)

    async def get(self, version_id: str) -> Version:
        return self.versions[version_id]

    def keep(self, story: Story, workspace: str = WORKSPACE, id_: str = EXECUTION_ID) -> None:
        self.versions["v"] = Version(story.definition, EffectKeys(b"s" * 32), NamedTokens(b"s" * 32, "completion"))
        self.tables.executions[id_] = {"execution_id": id_, "version_id": "v", "workspace": workspace}
        seq = story.execution.seq
        self.tables.journal[id_] = [JournalRow(seq, 1, stored) for stored in story.stored]

    def granted(self, story: Story, fork_id: str = LATER_ID, seq: int | None = None, **more: Any) -> OwnedExecution:
        grant = ExecutionGrant()
        grant.lease.lease_id, grant.lease.epoch = fork_id, 1
        start = grant.start
        start.workspace, start.version_id, start.origin_execution_id = WORKSPACE, "v", EXECUTION_ID
        start.origin_seq = story.execution.seq if seq is None else seq
        for name, value in more.items():
            setattr(start, name, value)
        owned = granted_execution(grant, "c", forwarded_command)
        owned.version = self.versions["v"]
        assert owned.is_unprepared_fork
        return owned


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> World:
    made = World(tmp_path / "outputs")
    await made.blobs.make()
    return made


def done(*outputs: Any) -> Story:
    """Nodes `n0`, `n1` and so on have succeeded one after the other with these outputs, and `bad` has failed."""
    ids = [f"n{place}" for place, _ in enumerate(outputs)]
    story = started(*map(node, ids), node("bad"), edges=chain(*ids, "bad"))
    for id_, output in zip(ids, outputs, strict=True):
        story.assign(id_)
        story.succeed(id_, output)
    story.assign("bad")
    story.fail("bad")
    return story


async def test_the_start_of_a_fork_gets_what_its_origin_has_done(world: World) -> None:
    origin = done(b'{"n":0}', b'{"n":1}')
    world.keep(origin)
    owned = world.granted(origin)
    await world.origins.prepare(owned)
    assert {name: work.output for name, work in owned.start.finished.items()} == {"n0": b'{"n":0}', "n1": b'{"n":1}'}
    assert not owned.is_unprepared_fork


async def test_only_what_was_done_at_the_named_event_is_taken_over(world: World) -> None:
    origin = done(b"0", b"1")
    world.keep(origin)
    first_success = next(seq for seq, event in enumerate(origin.journal, 1) if type(event).__name__ == "RunSucceeded")
    owned = world.granted(origin, seq=first_success)
    await world.origins.prepare(owned)
    assert list(owned.start.finished) == ["n0"]


async def test_what_lies_behind_the_node_to_begin_with_is_not_even_copied(world: World) -> None:
    stored = OutputRef("no/such/value", "ab" * 32, 300_000)
    origin = done(b"0", b"1", stored)
    world.keep(origin)
    owned = world.granted(origin, from_node="n1")
    await world.origins.prepare(owned)
    assert list(owned.start.finished) == ["n0"]


async def test_a_stored_output_is_copied_to_the_month_of_the_fork(world: World) -> None:
    value = json.dumps("x" * 300_000).encode()
    ref = OutputRef(*await world.blobs.put(value, WORKSPACE, month_of(EXECUTION_ID)))
    origin = done(ref)
    world.keep(origin)
    owned = world.granted(origin)
    await world.origins.prepare(owned)
    copied: Any = owned.start.finished["n0"].output
    assert is_blob_of(copied, WORKSPACE, month_of(LATER_ID))
    assert await world.blobs.get(copied, WORKSPACE) == value
    again = world.granted(origin)
    await world.origins.prepare(again)
    assert again.start.finished == owned.start.finished, "another holder prepares the same"


async def test_a_fork_of_the_same_month_shares_the_stored_output(world: World) -> None:
    ref = OutputRef(*await world.blobs.put(b'"x"', WORKSPACE, month_of(EXECUTION_ID)))
    origin = done(ref)
    world.keep(origin)
    owned = world.granted(origin, SAME_MONTH_ID)
    await world.origins.prepare(owned)
    assert owned.start.finished["n0"].output == ref


async def test_outputs_that_would_make_the_start_too_large_are_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_origins, "INLINE_BYTES_IN_ALL", 10)
    origin = done(b'"12345"', b'"67890"')
    world.keep(origin)
    owned = world.granted(origin)
    await world.origins.prepare(owned)
    first, second = (work.output for work in owned.start.finished.values())
    assert first == b'"12345"'
    assert isinstance(second, OutputRef)
    assert await world.blobs.get(second, WORKSPACE) == b'"67890"'


async def test_what_nodes_have_set_stays_in_the_journal_because_the_core_reads_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_origins, "INLINE_BYTES_IN_ALL", 0)
    origin = started(node("set", "state.set@1", inputs={"a": 1}), node("bad"), edges=chain("set", "bad"))
    world.keep(origin)
    owned = world.granted(origin)
    await world.origins.prepare(owned)
    assert owned.start.finished["set"].output == b'{"a":1}'


async def test_an_origin_that_is_gone_or_belongs_to_others_is_not_read(world: World) -> None:
    origin = done(b"0")
    world.keep(origin, workspace="others")
    owned = world.granted(origin)
    with pytest.raises(OriginGone):
        await world.origins.prepare(owned)
    world.tables.executions.clear()
    with pytest.raises(OriginGone):
        await world.origins.prepare(owned)
    world.keep(origin)
    world.tables.journal.clear()
    with pytest.raises(OriginGone):
        await world.origins.prepare(owned)
    assert owned.is_unprepared_fork


async def test_an_origin_that_cannot_be_read_to_the_named_event_is_left_to_a_newer_coordinator(world: World) -> None:
    origin = done(b"0")
    world.keep(origin)
    with pytest.raises(OriginNotRead):
        await world.origins.prepare(world.granted(origin, seq=origin.execution.seq + 1))


async def test_a_stored_output_that_is_lost_is_said(world: World) -> None:
    origin = done(OutputRef("no/such/value", "ab" * 32, 300_000))
    world.keep(origin)
    with pytest.raises(BlobMissing):
        await world.origins.prepare(world.granted(origin))


async def test_forks_of_one_workspace_do_not_hold_up_a_fork_of_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_copy, copy = asyncio.Event(), world.blobs.put_parts

    async def slowly(parts: Any, bytes_max: int, owner: str, month: str) -> BlobRef:
        await may_copy.wait()
        return await copy(parts, bytes_max, owner, month)

    monkeypatch.setattr(world.blobs, "put_parts", slowly)
    large, small = done(OutputRef(*await world.blobs.put(b'"x"', WORKSPACE, month_of(EXECUTION_ID)))), done(b"0")
    world.keep(large)
    world.keep(small, "others", SAME_MONTH_ID)
    many = [world.granted(large, f"{LATER_ID[:-2]}{number:02}") for number in range(10)]
    other = world.granted(small, workspace="others", origin_execution_id=SAME_MONTH_ID)
    slow = [asyncio.create_task(world.origins.prepare(each)) for each in many]
    quick = asyncio.create_task(world.origins.prepare(other))
    await until(quick.done, 10.0, "the fork of the other workspace")
    assert not other.is_unprepared_fork
    assert all(each.is_unprepared_fork for each in many)
    may_copy.set()
    await asyncio.gather(quick, *slow)
    assert not any(each.is_unprepared_fork for each in many)
