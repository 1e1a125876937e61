"""People look back at executions, event by event. Few do so at once, and workspaces take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from services.chassis.identity.named_tokens import NamedTokens
from services.coordinator.app.journal_walks import RESTORED_AT_ONCE_BYTES, JournalWalks, Restore
from services.coordinator.app.ports import Snapshot, Version
from services.coordinator.core.definition import Definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.state import Execution
from services.coordinator.store.snapshots import FORMAT, restored
from tests.support.memory_journal import JournalRow, JournalTables, MemoryReads
from tests.support.story import EXECUTION_ID, Story, node, started


class World:
    """Every execution has the journal of the story."""

    def __init__(self, story: Story, restore: Restore = restored) -> None:
        self.tables = tables = JournalTables()
        tables.journal[EXECUTION_ID] = [JournalRow(story.execution.seq, 1, stored) for stored in story.stored]
        self._version = Version(story.definition, EffectKeys(b"s" * 32), NamedTokens(b"s" * 32, "completion"))
        self.walks = JournalWalks(MemoryReads(tables), self, restore)

    def cached(self, version_id: str) -> Version | None:
        return self._version

    async def get(self, version_id: str) -> Version:
        return self._version


def row_of(workspace: str) -> Mapping[str, Any]:
    return {"execution_id": EXECUTION_ID, "version_id": "v", "workspace": workspace}


async def test_who_looks_back_in_one_workspace_does_not_wait_for_those_in_another() -> None:
    world = World(started(node("a")))
    first, second, third = (world.walks.walk(row_of("team")) for _ in range(3))
    await anext(first)
    await anext(second)
    waiting = asyncio.create_task(anext(third))
    assert await world.walks.state(row_of("rival"), 1) is not None
    assert not waiting.done()
    await first.aclose()
    assert (await waiting).seq == 1
    await second.aclose()
    await third.aclose()


async def test_the_event_loop_does_other_work_while_a_large_snapshot_is_restored() -> None:
    story, begun, may_end = started(node("a")), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slowly(execution_id: str, definition: Definition, records: Sequence[Snapshot]) -> Execution:
        loop.call_soon_threadsafe(begun.set)
        assert may_end.wait(10.0), "the event loop has stood still"
        execution: Execution = story.execution
        return execution

    world = World(story, slowly)
    seq = story.execution.seq
    large = Snapshot(seq, FORMAT, True, b"x" * (RESTORED_AT_ONCE_BYTES + 1))
    world.tables.snapshots[EXECUTION_ID] = [large]
    reading = asyncio.create_task(world.walks.state(row_of("team"), seq))
    await begun.wait()
    may_end.set()
    assert await reading is story.execution
