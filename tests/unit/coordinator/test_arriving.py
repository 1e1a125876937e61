"""Executions that wait for their definition or their journal: one that must wait holds up nobody else."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.chassis.errors import DependencyUnavailable
from services.chassis.lease.frames import Lease
from services.chassis.lease.timing import RUN
from services.coordinator.core.compiling import compile_definition
from services.coordinator.handler import arriving
from services.coordinator.handler.arriving import ArrivalLoop
from services.coordinator.handler.effect_keys import EffectKeys
from services.coordinator.handler.held import Held, held_from
from services.coordinator.handler.ports import DefinitionRefused, Loaded, Version
from tests.support.probe import eventually
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

VERSION = Version(
    compile_definition({"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}),
    EffectKeys(b"s" * 32),
)


class World:
    """Definitions, journals, a carrier and a dispatch, as far as arrivals need them."""

    def __init__(self) -> None:
        self.answers: dict[str, Version | Exception] = {}
        self.asked: list[str] = []
        self.begun: list[Held] = []
        self.dropped: list[Held] = []
        self.refused: list[tuple[str, bool]] = []
        self.loads: list[int] = []
        self.giant = ""
        self.loop = ArrivalLoop(
            journal=self,  # type: ignore[arg-type] # appends nothing here
            definitions=self,
            dispatch=self,  # type: ignore[arg-type] # only hands back
            fold=lambda *_: pytest.fail("nothing is journalled"),
            run_timing=RUN,
            holder="c",
            carrier=lambda: self,  # type: ignore[arg-type,return-value]
        )

    def cached(self, version_id: str) -> Version | None:
        return None

    async def get(self, version_id: str) -> Version:
        self.asked.append(version_id)
        answer = self.answers.get(version_id, DependencyUnavailable("api"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def load(self, leases: Sequence[Lease]) -> Sequence[Loaded]:
        self.loads.append(len(leases))
        if self.giant in [lease.lease_id for lease in leases]:
            raise DependencyUnavailable("the database")
        return [Loaded(0, ()) for _ in leases]

    async def live_instances(self, granted_again: float) -> Mapping[str, float]:
        return {}

    def begin(self, held: Held) -> None:
        self.begun.append(held)

    def drop(self, held: Held) -> None:
        held.is_dropped = True
        self.dropped.append(held)

    def released(self, execution_id: str, epoch: int, **more: Any) -> None:
        self.refused.append((more["reason"], more["permanent"]))

    def arrive(self, version_id: str) -> Held:
        grant = ExecutionGrant()
        grant.lease.lease_id, grant.lease.epoch = f"of {version_id}", 1
        grant.start.version_id = version_id
        held = held_from(grant, 0)
        held.is_loading = True
        self.loop.add(held)
        return held

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()


async def until(probe: Any) -> None:
    async def ask() -> Any:
        return probe()

    await eventually(ask, 5.0, "it")


async def test_a_definition_that_does_not_come_holds_up_nobody_else() -> None:
    world = World()
    world.answers["there"] = VERSION
    async with world.running():
        waiting = world.arrive("away")
        await until(lambda: world.asked.count("away") > 1)
        held = world.arrive("there")
        await until(lambda: world.begun == [held])
        assert held.version is VERSION
        world.answers["away"] = VERSION
        await until(lambda: world.begun == [held, waiting])


async def test_a_definition_is_asked_for_once_by_all_who_need_it_and_not_for_the_dropped() -> None:
    world = World()
    async with world.running():
        first, second = world.arrive("away"), world.arrive("away")
        await until(lambda: world.asked)
        first.is_dropped = True
        world.answers["away"] = VERSION
        await until(lambda: world.begun)
        assert world.begun == [second]
        gone = world.arrive("never")
        await until(lambda: "never" in world.asked)
        gone.is_dropped = True
        world.answers["never"] = VERSION
        world.arrive("other").is_dropped = True
    assert world.begun == [second]


async def test_a_version_that_is_not_there_is_refused_at_once_and_for_good() -> None:
    world = World()
    world.answers["none"] = DefinitionRefused("VERSION_NOT_FOUND", "no", is_permanent=True)
    async with world.running():
        held = world.arrive("none")
        await until(lambda: world.refused)
    assert world.refused == [("VERSION_NOT_FOUND", True)]
    assert world.dropped == [held]


async def test_a_definition_that_a_newer_coordinator_may_know_goes_back_after_a_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.answers["newer"] = DefinitionRefused("DEFINITION_CORRUPT", "?", is_permanent=False)
    monkeypatch.setattr(arriving, "_REST_SECONDS", 3_600.0)
    async with world.running():
        world.arrive("newer")
        await until(lambda: world.asked)
        assert not world.refused
        monkeypatch.setattr(arriving, "_REST_SECONDS", 0.0)
        world.arrive("newer")
        await until(lambda: world.refused)
    assert world.refused == [("DEFINITION_CORRUPT", False)]


async def test_a_journal_that_cannot_be_read_holds_up_no_other() -> None:
    world = World()
    world.answers["there"] = VERSION
    held = [held_from(ExecutionGrant(), 0) for _ in range(20)]
    for number, each in enumerate(held):
        each.execution_id = str(number)
        each.grant.start.version_id = "there"
    world.giant = "7"
    async with world.running():
        for each in held:
            world.loop.add(each)
        await until(lambda: len(world.begun) == 19)
        assert held[7] not in world.begun
        # It is tried again alone, and no other with it.
        tries = len(world.loads)
        later = world.arrive("there")
        await until(lambda: later in world.begun)
        await until(lambda: len(world.loads) > tries + 2)
        assert set(world.loads[tries:]) == {1}
        world.giant = ""
        await until(lambda: held[7] in world.begun)
