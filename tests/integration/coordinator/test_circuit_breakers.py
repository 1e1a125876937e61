"""Circuits from the reports of runners to the work that waits, with real coordinators and a real database."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from services.chassis.postgres.database import Database
from services.coordinator.core.events import ExecutionAdopted, RunLeased, WorkHeldBack, WorkLetThrough
from tests.support.coordinator_stage import Stage, eventually
from tests.support.journals import stored_events
from windlass.coordinator.v1 import circuits_pb2 as pb
from windlass.coordinator.v1 import sessions_pb2 as runs_pb
from windlass.coordinator.v1.circuits_pb2_grpc import CircuitServiceStub

CALL = {"name": "w", "nodes": [{"id": "a", "module": "x.y@1", "retry": {"initialDelay": "10ms", "attempts": 50}}]}
TARGET = "x.y@1 crm"
# Times are scaled by a fifth on this stage. Windows and permits are long, so that a busy machine changes nothing.
QUICK: Any = {
    "circuit_cool_down_seconds": 1.0,
    "circuit_cool_down_seconds_max": 5.0,
    "circuit_window_seconds": 300.0,
    "circuit_permit_seconds": 300.0,
}
SLOW: Any = {**QUICK, "circuit_cool_down_seconds": 3_000.0, "circuit_cool_down_seconds_max": 3_000.0}


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def no_circuits(tables: Database) -> AsyncIterator[None]:
    await tables.execute("DELETE FROM circuits")
    yield


class Crm:
    """What a runner does that names its target, and what the target has seen."""

    def __init__(self) -> None:
        self.runner: Any = None
        # None: it does not answer at all.
        self.is_well: bool | None = False
        self.calls: list[runs_pb.RunGrant] = []
        self.handed_back = 0

    def work(self, grant: runs_pb.RunGrant) -> None:
        if "crm" in grant.open_targets:
            self.handed_back += 1
            self.report(grant, released=runs_pb.RunReport.Released(reason="CIRCUIT_OPEN"))
            return
        self.calls.append(grant)
        if self.is_well is not None:
            self.answer(grant)

    def answer(self, grant: runs_pb.RunGrant) -> None:
        if self.is_well:
            self.report(grant, succeeded=runs_pb.RunReport.Succeeded(output=runs_pb.Output(json=b"{}")))
        else:
            failed = runs_pb.RunReport.Failed(type="DOWN", message="no answer")
            setattr(failed, "class", runs_pb.ERROR_CLASS_TRANSIENT)
            self.report(grant, failed=failed)

    def report(self, grant: runs_pb.RunGrant, **outcome: Any) -> None:
        self.runner.report(grant, runs_pb.RunReport(target="crm", **outcome))


async def runner_of(on_stage: Stage, address: str, crm: Crm) -> None:
    # The runner is known before it is granted anything.
    crm.runner = await on_stage.runner(address, modules=("x.y@1",), idempotent=("x.y@1",), work=crm.work)


async def begin(on_stage: Stage, crm: Crm, **settings: Any) -> tuple[str, Any]:
    on_stage.catalog.add("v-call", **CALL)
    address, session = await on_stage.coordinator(**settings)
    await runner_of(on_stage, address, crm)
    return address, session


def start(on_stage: Stage, session: Any, count: int) -> list[str]:
    orders = [on_stage.dispatcher.order("v-call") for _ in range(count)]
    on_stage.dispatcher.grant(session, orders)
    return [order.lease.lease_id for order in orders]


async def state(tables: Database) -> str:
    rows = await tables.fetch("SELECT state FROM circuits WHERE target = %s", (TARGET,))
    return str(rows[0][0]) if rows else ""


async def all_wait(tables: Database, ids: list[str]) -> bool:
    """Each of them waits for a circuit, and for nothing else."""
    for id_ in ids:
        stored = await stored_events(tables, id_)
        if not stored or not isinstance(stored[-1].event, WorkHeldBack):
            return False
    return True


async def events(tables: Database, id_: str, *kinds: type) -> list[Any]:
    return [stored.event for stored in await stored_events(tables, id_) if isinstance(stored.event, kinds)]


async def test_failures_open_it_and_answers_close_it_and_everything_is_done(on_stage: Stage, tables: Database) -> None:
    crm = Crm()
    _, session = await begin(on_stage, crm, **QUICK)
    ids = start(on_stage, session, 60)
    await eventually(lambda: crm.handed_back)
    assert await state(tables) in ("OPEN", "HALF_OPEN")
    crm.is_well = True
    await eventually(lambda: len(on_stage.dispatcher.finished) == 60, seconds=60)
    assert await state(tables) == "CLOSED"
    rows = await tables.fetch("SELECT DISTINCT state FROM executions WHERE execution_id = ANY(%s::uuid[])", (ids,))
    assert rows == [("SUCCESS",)]
    # Whatever was held back costs nothing: only calls that were made count as retries.
    ((retries,),) = await tables.fetch(
        "SELECT sum(retries)::int8 FROM executions WHERE execution_id = ANY(%s::uuid[])", (ids,)
    )
    assert retries == len(crm.calls) - 60


async def test_work_behind_an_open_circuit_waits_and_takes_no_place(on_stage: Stage, tables: Database) -> None:
    crm = Crm()
    address, session = await begin(on_stage, crm, **SLOW)
    ids = start(on_stage, session, 30)
    await eventually(lambda: all_wait(tables, ids))
    made = len(crm.calls)
    more = start(on_stage, session, 5)
    await eventually(lambda: all_wait(tables, more))
    assert len(crm.calls) == made
    # Each of them was told so once, and all that waits can be parked until the circuit is probed.
    (held,) = await events(tables, more[0], WorkHeldBack)
    assert (held.run, held.target) == (1, TARGET)
    parked = [report.parked for report in on_stage.dispatcher.reports if report.WhichOneof("report") == "parked"]
    assert parked
    assert all(each.wake_time.seconds for each in parked)
    stub = CircuitServiceStub(on_stage.channel(address))
    request = pb.GetCircuitRequest(workspace="default", target=TARGET)

    async def waiting() -> bool:
        shown = (await stub.GetCircuit(request, metadata=on_stage.api_metadata)).circuit
        return bool(shown.waiting == 35)

    await eventually(waiting)


async def test_a_reset_lets_all_work_through_that_waits(on_stage: Stage, tables: Database) -> None:
    crm = Crm()
    address, session = await begin(on_stage, crm, **QUICK | {"circuit_cool_down_seconds": 45.0})
    ids = start(on_stage, session, 30)
    await eventually(lambda: all_wait(tables, ids))
    crm.is_well = True
    # Those that were parked come back when the dispatcher grants them again, here at once.
    stub = CircuitServiceStub(on_stage.channel(address))
    request = pb.ResetCircuitRequest(workspace="default", target=TARGET)
    assert (await stub.ResetCircuit(request, metadata=on_stage.api_metadata)).circuit.failure_count == 0
    parked = {report.head.lease_id for report in on_stage.dispatcher.reports if report.WhichOneof("report") == "parked"}
    again = [on_stage.dispatcher.order("v-call", id_=each, resumed=True) for each in parked]
    on_stage.dispatcher.grant(session, again)
    await eventually(lambda: len(on_stage.dispatcher.finished) == 30, seconds=60)


async def test_a_target_that_was_opened_by_hand_is_not_called(on_stage: Stage, tables: Database) -> None:
    crm = Crm()
    crm.is_well = True
    address, session = await begin(on_stage, crm, **QUICK)
    stub = CircuitServiceStub(on_stage.channel(address))
    request = pb.OpenCircuitRequest(workspace="default", target=TARGET)
    request.until.FromSeconds(int(time.time()) + 3600)
    await stub.OpenCircuit(request, metadata=on_stage.api_metadata)

    async def is_held() -> bool:
        (id_,) = start(on_stage, session, 1)
        await eventually(lambda: crm.handed_back or id_ in on_stage.dispatcher.finished)
        return crm.handed_back > 0

    # Every coordinator has heard of it within a second.
    await eventually(is_held)
    made = len(crm.calls)
    (id_,) = start(on_stage, session, 1)
    await eventually(lambda: all_wait(tables, [id_]))
    assert len(crm.calls) == made


async def test_a_literal_target_is_held_back_without_a_run(on_stage: Stage, tables: Database) -> None:
    nodes = [{"id": "a", "module": "http.request@1", "config": {"url": "https://example.org/"}}]
    on_stage.catalog.add("v-http", name="w", nodes=nodes)
    address, session = await on_stage.coordinator(**SLOW)
    stub = CircuitServiceStub(on_stage.channel(address))
    request = pb.OpenCircuitRequest(workspace="default", target="http.request@1 example.org:443")
    request.until.FromSeconds(int(time.time()) + 3600)
    await stub.OpenCircuit(request, metadata=on_stage.api_metadata)
    runner = await on_stage.runner(address, modules=("http.request@1", "noop@1"))

    async def has_been_held() -> bool:
        order = on_stage.dispatcher.order("v-http")
        on_stage.dispatcher.grant(session, [order])
        id_ = order.lease.lease_id
        await eventually(lambda: is_decided(id_))
        return bool(await events(tables, id_, WorkHeldBack)) and not await events(tables, id_, RunLeased)

    async def is_decided(id_: str) -> bool:
        return bool(await events(tables, id_, WorkHeldBack)) or id_ in on_stage.dispatcher.finished

    await eventually(has_been_held)
    assert runner is not None


async def test_no_more_than_the_permitted_are_probed_across_a_death_of_their_coordinator(
    on_stage: Stage, tables: Database
) -> None:
    """S20, with a coordinator that dies while its probes are under way."""
    crm = Crm()
    _, first = await begin(on_stage, crm, **QUICK)
    ids = start(on_stage, first, 40)
    await eventually(lambda: state_is(tables, "OPEN"))
    crm.is_well = None
    permitted: list[str] = []

    async def are_probed() -> bool:
        permitted[:] = [name.partition("/")[0] for name in await permits_of(tables)]
        return len(permitted) == 3 and set(permitted) <= {grant.execution_id for grant in crm.calls[begun:]}

    begun = len(crm.calls)
    await eventually(are_probed)
    made = len(crm.calls)
    probes = [grant for grant in crm.calls[begun:] if grant.execution_id in permitted]
    second_address, second = await on_stage.coordinator("1", **QUICK)
    await on_stage.attach_also(crm.runner, second_address)
    on_stage.coordinators[0].process.stop()
    on_stage.dispatcher.grant(second, [on_stage.dispatcher.order("v-call", id_=each, resumed=True) for each in ids])
    await eventually(lambda: all_adopted(tables, ids))
    permits = await permits_of(tables)

    async def are_renewed() -> bool:
        later = await permits_of(tables)
        return later.keys() == permits.keys() and all(later[name] > until for name, until in permits.items())

    await eventually(are_renewed)
    assert len(crm.calls) == made, "another probe was let through"
    crm.is_well = True
    for grant in probes:
        crm.answer(grant)
    await eventually(lambda: len(on_stage.dispatcher.finished) == 40, seconds=60)
    let_through = [each for id_ in ids for each in await events(tables, id_, WorkLetThrough) if each.is_probe]
    assert len(let_through) >= 3


async def test_a_coordinator_that_begins_knows_which_circuits_are_open(on_stage: Stage, tables: Database) -> None:
    _, first = await begin(on_stage, Crm(), **SLOW)
    start(on_stage, first, 40)
    await eventually(lambda: state_is(tables, "OPEN"))
    address, second = await on_stage.coordinator("1", **SLOW)
    later = Crm()
    await runner_of(on_stage, address, later)
    start(on_stage, second, 1)
    await eventually(lambda: later.handed_back or later.calls)
    assert later.calls == []


async def permits_of(tables: Database) -> dict[str, int]:
    rows = await tables.fetch("SELECT permits FROM circuits WHERE target = %s", (TARGET,))
    return dict(rows[0][0]) if rows else {}


async def state_is(tables: Database, expected: str) -> bool:
    return await state(tables) == expected


async def all_adopted(tables: Database, ids: list[str]) -> bool:
    return all([await events(tables, id_, ExecutionAdopted) for id_ in ids])
