"""The promises that every store of circuits keeps, in memory and in PostgreSQL, when several coordinators use it."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.chassis.postgres.database import Database as Connections
from services.coordinator.app.ports import CircuitsFull
from services.coordinator.core.circuits import SLOTS, Circuit, CircuitPolicy, CircuitState, CircuitVisit, ProbeOutcome
from services.coordinator.core.values import SECOND
from services.coordinator.store import circuits as rows
from services.coordinator.store.circuits import PostgresCircuits
from tests.support.circuits import MemoryCircuits
from tests.support.coordinator_stage import eventually
from tests.support.postgres import Database

# Long times stand for "not in this test", short ones for "at once".
POLICY = CircuitPolicy(cool_down=1, cool_down_max=1, permit_term=600 * SECOND, window=600 * SECOND)
CLOSED, OPEN, HALF_OPEN = CircuitState


class World:
    """A store of circuits, as several coordinators use it."""

    def __init__(self, database: Database, *, is_in_memory: bool) -> None:
        self._database = database
        self._rows: dict[tuple[str, str], Circuit] | None = {} if is_in_memory else None
        self._pools: list[Connections] = []
        self.stores = [self.store() for _ in range(4)]

    def store(self, policy: CircuitPolicy = POLICY) -> Any:
        """That of another coordinator."""
        if self._rows is not None:
            return MemoryCircuits(policy, self._rows)
        self._pools.append(Connections(self._database.url("coordinator"), name="contract", connections=2))
        return PostgresCircuits(self._pools[-1], policy)

    def limit(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "CIRCUITS_MAX", count)
        if self._rows is not None:
            for store in self.stores:
                store.circuits_max = count

    async def open(self) -> None:
        if self._pools:
            await self._pools[0].execute("DELETE FROM circuits")

    async def close(self) -> None:
        for pool in self._pools:
            await pool.close()


@pytest_asyncio.fixture(loop_scope="session", params=["memory", "postgres"])
async def world(database: Database, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made = World(database, is_in_memory=request.param == "memory")
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def stores(world: World) -> list[Any]:
    return world.stores


def in_an_hour() -> int:
    return time.time_ns() // 1_000 + 3600 * SECOND


def visit(target: str = "m@1 t", workspace: str = "w", failures: int = 0, **more: Any) -> CircuitVisit:
    told = {"coordinator": "c0", "failures": (failures, *(0,) * (SLOTS - 1))} | more
    return CircuitVisit(workspace, target, **told)


async def opened(store: Any, target: str = "m@1 t") -> None:
    ((_, after, _),) = await store.visit([visit(target, failures=10)])
    assert after.state is OPEN


async def test_failures_that_several_coordinators_see_add_up(stores: list[Any]) -> None:
    visits = [store.visit([visit(failures=1)]) for store in stores for _ in range(3)]
    changes = [change for (change,) in await asyncio.gather(*visits)]
    assert [before.state is not after.state for before, after, _ in changes].count(True) == 1
    assert {standing.state for standing in await stores[0].standings()} == {"OPEN"}


async def test_of_all_that_ask_at_once_only_the_permitted_go_through(stores: list[Any]) -> None:
    await opened(stores[0])
    asks = [f"work-{number}" for number in range(40)]
    visits = [stores[place % 4].visit([visit(generation=1, asks=(name,))]) for place, name in enumerate(asks)]
    await asyncio.gather(*visits)
    found = await stores[1].get("w", "m@1 t")
    assert found is not None
    assert (found.state, len(found.permits)) == (HALF_OPEN, POLICY.permits_max)
    (standing,) = await stores[2].standings()
    assert standing.permits == POLICY.permits_max
    # Each gives up its permit with its outcome, whoever brings it.
    probes = [
        stores[place].visit([visit(generation=1, probes=(ProbeOutcome(each.work, True),))])
        for place, each in enumerate(found.permits)
    ]
    await asyncio.gather(*probes)
    found = await stores[3].get("w", "m@1 t")
    assert found is not None
    assert found.state is CLOSED


async def test_visits_to_the_same_circuits_in_any_order_never_wait_in_a_circle(stores: list[Any]) -> None:
    targets = [f"m@1 t{number}" for number in range(20)]
    forth, back = [[visit(each, failures=1) for each in order] for order in (targets, targets[::-1])]
    await asyncio.gather(*[store.visit(forth if place % 2 else back) for place, store in enumerate(stores * 5)])
    found = await stores[0].page("w", "", "", "", 100)
    assert [each.target for each in found] == sorted(targets)
    assert {each.state for each in found} == {OPEN}


async def test_a_target_that_only_answers_gets_no_row(stores: list[Any]) -> None:
    answers = (7, *(0,) * (SLOTS - 1))
    assert await stores[0].visit([visit(answers=answers), visit("m@1 u", asks=("a",))]) == []
    assert await stores[0].standings() == []


async def test_permits_that_are_over_are_not_counted(world: World) -> None:
    await opened(world.stores[0])
    short = world.store(CircuitPolicy(cool_down=1, cool_down_max=1, permit_term=1))
    await short.visit([visit(generation=1, asks=("a", "b"))])

    async def is_over() -> bool:
        (standing,) = await world.stores[0].standings()
        return bool(standing.permits == 0)

    await eventually(is_over)


async def test_a_page_has_the_circuits_of_one_workspace_in_order(stores: list[Any]) -> None:
    store = stores[0]
    await store.visit([visit("b@1 y", failures=10), visit("a@1 x", failures=1), visit("a@1 x", "other", failures=1)])
    assert [each.target for each in await store.page("w", "", "", "", 10)] == ["a@1 x", "b@1 y"]
    assert [each.target for each in await store.page("w", "", "", "a@1 x", 10)] == ["b@1 y"]
    assert [each.target for each in await store.page("w", "", "a@1 ", "", 10)] == ["a@1 x"]
    assert [each.target for each in await store.page("w", "OPEN", "", "", 10)] == ["b@1 y"]
    assert [each.target for each in await store.page("w", "", "", "", 1)] == ["a@1 x"]
    assert await store.get("nobody", "a@1 x") is None


async def test_people_open_and_reset_a_circuit(stores: list[Any]) -> None:
    store = stores[0]
    assert await store.reset("w", "m@1 t") is None
    found = await store.open("w", "m@1 t", in_an_hour())
    assert (found.state, found.generation) == (OPEN, 1)
    (standing,) = await store.standings()
    assert 3500 < standing.retry_seconds <= 3600
    again = await store.reset("w", "m@1 t")
    assert again is not None
    assert (again.state, again.generation, again.retry_time) == (CLOSED, 2, 0)


async def test_a_workspace_has_only_so_many_circuits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.limit(2, monkeypatch)
    store = world.stores[0]
    await store.visit([visit("m@1 a", failures=1)])
    await store.visit([visit("m@1 b", failures=1)])
    assert await store.visit([visit("m@1 c", failures=1)]) == []
    with pytest.raises(CircuitsFull):
        await store.open("w", "m@1 c", in_an_hour())
    # Those that exist are still visited, and another workspace has its own.
    assert len(await store.visit([visit("m@1 a", failures=1), visit("m@1 c", "other", failures=1)])) == 2


async def test_quiet_circuits_are_forgotten(stores: list[Any]) -> None:
    store = stores[0]
    await store.visit([visit("m@1 waits", failures=10, waiting=3), visit("m@1 quiet", failures=1)])
    await store.open("w", "m@1 by hand", in_an_hour())
    assert await store.forget_idle(600.0) == 0
    assert await store.forget_idle(0.0) == 1
    assert [each.target for each in await store.page("w", "", "", "", 10)] == ["m@1 by hand", "m@1 waits"]
