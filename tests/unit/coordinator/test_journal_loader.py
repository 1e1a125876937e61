"""An execution that waits for its definition or its journal holds up no other."""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from services.chassis.blobs import BlobMissing
from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.identity.named_tokens import NamedTokens
from services.chassis.lease.frames import Lease
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.coordinator.app import journal_loader
from services.coordinator.app.fork_origins import OriginGone, OriginNotRead
from services.coordinator.app.journal_loader import JournalLoader
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.ports import (
    DefinitionRefused,
    JournalDamaged,
    Loaded,
    Snapshot,
    SnapshotDamaged,
    TakenUp,
    Version,
)
from services.coordinator.core.commands import Command
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.state import Execution
from services.coordinator.peers.dispatch import granted_execution
from services.coordinator.rpc.run_messages import forwarded_command
from tests.support import probe
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

until = functools.partial(probe.until, seconds=5.0, what="it")
VERSION = Version(
    compile_definition({"name": "w", "nodes": [{"id": "a", "module": "noop@1"}], "edges": []}),
    EffectKeys(b"s" * 32),
    NamedTokens(b"s" * 32, "completion"),
)


def granted(execution_id: str, version_id: str) -> OwnedExecution:
    grant = ExecutionGrant()
    grant.lease.lease_id, grant.lease.epoch = execution_id, 1
    grant.start.version_id = version_id
    return granted_execution(grant, "c", forwarded_command)


class World:
    """Definitions, journals and the owned executions, as far as the loader needs them."""

    def __init__(self) -> None:
        self.answers: dict[str, Version | Exception] = {}
        self.fetched: dict[str, Version] = {}
        self.asked: list[str] = []
        self.begun: list[OwnedExecution] = []
        self.dropped: list[OwnedExecution] = []
        self.refused: list[tuple[str, bool]] = []
        self.failed: list[int] = []
        self.hands_back_unfailed = False
        self.prepared: list[OwnedExecution] = []
        # How preparing a fork fails, one time after the other.
        self.fork_failures: Iterator[Exception] = iter(())
        self.hard_loads: list[list[str]] = []
        # These are read neither with others nor in little time.
        self.giants: set[str] = set()
        # These cannot be read at all.
        self.damaged: set[str] = set()
        # These have a journal, whose newest snapshot cannot be used.
        self.with_damaged_snapshots: set[str] = set()
        # How dropping its snapshots fails, one time after the other.
        self.drop_failures: Iterator[Exception] = iter(())
        self.adopted: list[OwnedExecution] = []
        # A load of more than these takes longer than it may.
        self.most = 1_000
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.may_read_hard = asyncio.Event()
        self.unloaded: list[OwnedExecution] = []
        self.unloaded_level = Level()
        self.loop = JournalLoader(
            executions=self,  # type: ignore[arg-type] # only begins, drops and hands back
            journal=self,  # type: ignore[arg-type] # appends nothing here
            definitions=self,
            fold=self.fold,
            read_lists=self.read_lists,
            fork_origins=self,  # type: ignore[arg-type] # only prepares
            granted_again=16.0,
            holder="c",
        )

    def cached(self, version_id: str) -> Version | None:
        return self.fetched.get(version_id)

    async def get(self, version_id: str) -> Version:
        self.asked.append(version_id)
        answer = self.answers.get(version_id, DependencyUnavailable("api"))
        if isinstance(answer, Exception):
            raise answer
        self.fetched[version_id] = answer
        return answer

    def fold(self, execution_id: str, definition: Definition, found: Loaded) -> TakenUp:
        assert found.events, "nothing is journalled"
        if found.snapshots:
            raise SnapshotDamaged("it is cut off")
        return TakenUp(Execution(execution_id, definition), None)

    async def read_lists(self, execution: Execution, workspace: str) -> None:
        pass

    async def load(
        self, leases: Sequence[Lease], *, is_patient: bool, drops_snapshots: bool = False
    ) -> Sequence[Loaded]:
        if drops_snapshots:
            return await self.load_without_snapshots(leases)
        if is_patient:
            return await self.load_hard(leases)
        await self.may_read.wait()
        if len(leases) > self.most or not self.giants.isdisjoint(lease.lease_id for lease in leases):
            self.failed.append(len(leases))
            raise DependencyUnavailable("the database")
        if not self.damaged.isdisjoint(lease.lease_id for lease in leases):
            raise JournalDamaged("missing chunk number 0")
        return [self.found(lease) for lease in leases]

    async def load_hard(self, leases: Sequence[Lease]) -> Sequence[Loaded]:
        self.hard_loads.append([lease.lease_id for lease in leases])
        await self.may_read_hard.wait()
        if len(self.hard_loads) == 1:
            raise DependencyUnavailable("the database")
        return [self.found(lease) for lease in leases]

    async def load_without_snapshots(self, leases: Sequence[Lease]) -> Sequence[Loaded]:
        if failure := next(self.drop_failures, None):
            raise failure
        return [Loaded(lease.epoch, [b"events"]) for lease in leases]

    def found(self, lease: Lease) -> Loaded:
        if lease.lease_id not in self.with_damaged_snapshots:
            return Loaded(0, ())
        return Loaded(lease.epoch, [b"events"], [Snapshot(1, "", True, b"")])

    def resume(self, owned: OwnedExecution, adopt: Command) -> None:
        self.adopted.append(owned)

    def take_on(self, count: int) -> list[OwnedExecution]:
        """Takes on so many executions whose definition is there."""
        self.answers["there"] = VERSION
        owned = [granted(str(number), "there") for number in range(count)]
        self.unloaded += owned
        self.unloaded_level.set()
        return owned

    async def live_instances(self, granted_again: float) -> Mapping[str, float]:
        return {}

    async def prepare(self, owned: OwnedExecution) -> None:
        """As ForkOrigins does it."""
        self.prepared.append(owned)
        if failure := next(self.fork_failures, None):
            raise failure

    def fork(self) -> OwnedExecution:
        """Takes on a fork whose definition is there."""
        (owned,) = self.take_on(1)
        owned.start = replace(owned.start, origin=replace(owned.start.origin, origin_seq=7))
        return owned

    def begin(self, owned: OwnedExecution) -> None:
        self.begun.append(owned)

    def drop(self, owned: OwnedExecution) -> None:
        owned.is_dropped = True
        self.dropped.append(owned)

    def return_lease(
        self, owned: OwnedExecution, reason: str, message: str, *, failed: bool = True, permanent: bool = False
    ) -> None:
        assert failed != self.hands_back_unfailed
        self.refused.append((reason, permanent))
        self.drop(owned)

    def arrive(self, version_id: str) -> OwnedExecution:
        owned = granted(f"of {version_id}", version_id)
        self.unloaded.append(owned)
        self.unloaded_level.set()
        return owned

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()


@pytest.fixture
def world() -> World:
    return World()


async def test_a_definition_that_does_not_come_holds_up_nobody_else(world: World) -> None:
    world.answers["there"] = VERSION
    async with world.running():
        waiting = world.arrive("away")
        await until(lambda: world.asked.count("away") > 1)
        owned = world.arrive("there")
        await until(lambda: world.begun == [owned])
        assert owned.version is VERSION
        world.answers["away"] = VERSION
        await until(lambda: world.begun == [owned, waiting])


async def test_a_definition_is_asked_for_once_by_all_who_need_it_and_not_for_the_dropped(world: World) -> None:
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


async def test_a_definition_that_comes_while_journals_are_read_is_not_asked_for_again(world: World) -> None:
    world.may_read.clear()
    async with world.running():
        world.take_on(1)
        first = world.arrive("late")
        await until(lambda: {"there", "late"} <= set(world.asked))
        second = world.arrive("late")
        world.answers["late"] = VERSION
        await until(lambda: "late" in world.fetched)
        world.asked.clear()
        world.may_read.set()
        await until(lambda: first in world.begun and second in world.begun)
        assert not world.asked


async def test_a_version_that_is_not_there_is_refused_at_once_and_for_good(world: World) -> None:
    world.answers["none"] = DefinitionRefused("VERSION_NOT_FOUND", "no", is_permanent=True)
    async with world.running():
        owned = world.arrive("none")
        await until(lambda: world.refused)
    assert world.refused == [("VERSION_NOT_FOUND", True)]
    assert world.dropped == [owned]


async def test_a_definition_that_a_newer_coordinator_may_know_goes_back_after_a_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.answers["newer"] = DefinitionRefused("DEFINITION_CORRUPT", "?", is_permanent=False)
    monkeypatch.setattr(journal_loader, "REST_SECONDS", 3_600.0)
    async with world.running():
        world.arrive("newer")
        await until(lambda: world.asked)
        assert not world.refused
        monkeypatch.setattr(journal_loader, "REST_SECONDS", 0.0)
        world.arrive("newer")
        await until(lambda: world.refused)
    assert world.refused == [("DEFINITION_CORRUPT", False)]


async def test_a_journal_that_cannot_be_read_holds_up_no_other(world: World) -> None:
    world.giants = {"7", "150"}
    async with world.running():
        owned = world.take_on(200)
        await until(lambda: len(world.begun) == 198)
        # The two are read alone. While one of them is read, others come and go.
        await until(lambda: world.hard_loads)
        later = world.arrive("there")
        await until(lambda: later in world.begun)
        assert world.hard_loads == [["7"]]
        world.may_read_hard.set()
        await until(lambda: {owned[7], owned[150]} < set(world.begun))
    assert sorted(world.hard_loads) == [["150"], ["7"], ["7"]]


async def test_a_journal_that_is_away_while_its_damaged_snapshots_are_dropped_is_read_again(world: World) -> None:
    """Nothing else arrives that would wake the loader, and the journal was read apart, in time of its own."""
    world.giants = world.with_damaged_snapshots = {"0"}
    world.drop_failures = iter([DependencyUnavailable("the database")])
    async with world.running():
        (owned,) = world.take_on(1)
        await until(lambda: len(world.hard_loads) == 1)
        world.giants = set()
        world.may_read_hard.set()
        await until(lambda: world.adopted == [owned])


async def test_few_tries_find_the_journal_that_cannot_be_read(world: World) -> None:
    world.giants = {"7"}
    async with world.running():
        world.take_on(200)
        await until(lambda: world.hard_loads)
        # All are tried, then a part, and then the one alone.
        assert world.failed == [200, 14, 1]


async def test_what_is_slow_is_read_in_batches_that_its_time_is_enough_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "next", lambda _: 0.0)
    world.most = 20
    async with world.running():
        world.take_on(1_000)
        await until(lambda: len(world.begun) == 1_000)
        # All are tried at once, and after that never more than twice as many as went well.
        assert max(world.failed[1:]) <= 2 * world.most


async def test_a_journal_that_is_damaged_is_handed_back_as_failed_and_harms_no_other(world: World) -> None:
    world.damaged = {"7"}
    async with world.running():
        world.take_on(50)
        await until(lambda: len(world.begun) == 49)
        await until(lambda: world.refused)
    assert world.refused == [("JOURNAL_CORRUPT", False)]
    assert [each.execution_id for each in world.dropped] == ["7"]


async def test_newcomers_and_what_failed_are_read_by_turns(world: World) -> None:
    world.giants = {str(number) for number in range(200)}
    async with world.running():
        world.take_on(200)
        await until(lambda: world.failed)
        later = world.arrive("there")
        await until(lambda: later in world.begun)
        assert len(world.failed) < 15


async def test_a_fork_begins_once_its_origin_was_read(world: World) -> None:
    world.fork_failures = iter([DependencyUnavailable("the database")])
    async with world.running():
        owned = world.fork()
        await until(lambda: world.begun == [owned])
    assert world.prepared == [owned, owned], "it is tried again"


async def test_a_fork_that_is_lost_meanwhile_does_not_begin(world: World) -> None:
    async with world.running():
        owned = world.fork()
        world.fork_failures = (_drop(owned) for _ in range(1))
        await until(lambda: world.prepared)
        (other,) = world.take_on(1)
        await until(lambda: world.begun == [other])
    assert (world.begun, world.refused) == ([other], [])


def _drop(owned: OwnedExecution) -> Exception:
    owned.is_dropped = True
    return OriginGone("o")


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (OriginGone("o"), ("ORIGIN_GONE", True)),
        (BlobMissing("b"), ("OUTPUT_STORE", False)),
        (OSError("the disk is away"), ("OUTPUT_STORE", False)),
        (ValueError("damaged"), ("ORIGIN_CORRUPT", False)),
        (DefinitionRefused("VERSION_NOT_FOUND", "no", is_permanent=True), ("VERSION_NOT_FOUND", True)),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_fork_whose_origin_cannot_be_read_is_handed_back_with_the_reason(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: Exception, told: tuple[str, bool]
) -> None:
    monkeypatch.setattr(journal_loader, "REST_SECONDS", 0.01)
    world.fork_failures = iter([failure])
    async with world.running():
        world.fork()
        await until(lambda: world.refused)
    assert (world.refused, world.begun) == ([told], [])


async def test_a_fork_whose_origin_a_newer_coordinator_may_read_goes_back_after_a_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_loader, "REST_SECONDS", 0.01)
    world.fork_failures, world.hands_back_unfailed = iter([OriginNotRead("o")]), True
    async with world.running():
        world.fork()
        await until(lambda: world.refused)
    assert world.refused == [("EVENT_UNKNOWN", False)]
