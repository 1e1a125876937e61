"""What a coordinator brings to circuits, and which work it holds back or lets through."""

import asyncio
from typing import Any

import pytest

from services.chassis.grpc.errors import DependencyUnavailable
from services.coordinator.app.circuits import Circuits, permit_name
from services.coordinator.app.owned_execution import Input, OwnedExecution
from services.coordinator.app.parked_waits import ParkedWaits
from services.coordinator.app.pending_append import PendingAppend, TargetOutcome
from services.coordinator.core.circuits import Circuit, CircuitPolicy, CircuitState, opened_by_hand, reset
from services.coordinator.core.commands import HeldWork, HoldBack, Pause, ReportFailure, ReportHeldBack, ReportSuccess
from services.coordinator.core.events import WorkHeldBack, WorkLetThrough
from services.coordinator.core.values import Error, ErrorClass, WorkKey
from services.coordinator.peers.dispatch import start_command
from services.coordinator.store import codec
from tests.support.circuits import MemoryCircuits
from tests.support.manual_clock import ManualClock
from tests.support.story import EXECUTION_ID, SECOND, Story, begun, node, started
from tests.unit.coordinator.test_owned_executions import executions
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

POLICY = CircuitPolicy()
TARGET = "http.request@1 example.org:443"
KEY = ("default", TARGET)
CLOSED, OPEN, HALF_OPEN = CircuitState


class World:
    """The circuits that coordinators share, in memory."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rows: dict[tuple[str, str], Circuit] = {}

    @property
    def state(self) -> CircuitState:
        return self.rows[KEY].state

    @property
    def now(self) -> int:
        return self.clock.epoch_ns() // 1_000


class Coordinator:
    """One of them, with one execution, whose inbox the test decides."""

    def __init__(self, world: World, count: int = 1) -> None:
        self.world = world
        self.store = MemoryCircuits(POLICY, world.rows, world.clock)
        self.executions = executions()
        # A dispatcher hears it.
        self.may_start = True
        self.circuits = Circuits(
            store=self.store,
            executions=self.executions,
            may_start=lambda: self.may_start,
            clock=world.clock,
            policy=POLICY,
            name=f"c{id(self)}",
            parked=ParkedWaits(),
        )
        config = {"url": "https://example.org/"}
        self.story = started(*[node(f"n{number}", "http.request@1", config=config) for number in range(count)])
        self.owned = OwnedExecution(
            EXECUTION_ID, 1, start_command(ExecutionGrant(), "c1"), execution=self.story.execution
        )

    def outcome(self, *, has_failed: bool = True, is_probe: bool = False, number: int = 0, ago: float = 0.0) -> None:
        """A run has ended that was granted so many seconds ago."""
        lease_time = self.world.now - int(ago * SECOND)
        told = TargetOutcome(TARGET, has_failed, WorkKey(f"n{number}"), is_probe, 99, lease_time)
        self.circuits.note(self.owned, [told])

    async def tick(self, seconds: float = 0.25) -> list[Any]:
        """Let time pass, and decide what was put into the inbox. Returns the events."""
        self.world.clock.advance(seconds)
        self.story.now = self.world.now
        self.circuits.follow(self.owned)
        await self.circuits.tick()
        inbox, self.owned.inbox = self.owned.inbox, []
        return [event for each in inbox for event in self.story.when(each.command).events]

    def hold_back(self, seconds: float = 0.0) -> None:
        """All its ready work waits, for so many seconds at least."""
        self.story.now = self.world.now
        until = self.world.now + int(seconds * SECOND)
        works = [HeldWork(work.key, TARGET, until) for work in list(self.story.execution.ready)]
        self.story.when(HoldBack(works))

    def holds(self) -> list[HeldWork]:
        return self.circuits.holds(self.story.execution, list(self.story.execution.ready))


async def opened(world: World, *coordinators: Coordinator) -> None:
    """The circuit has opened, and all of them know it."""
    for _ in range(10):
        coordinators[0].outcome()
    for each in coordinators:
        await each.tick(1.0)
    assert world.state is OPEN


async def half_open(world: World, coordinator: Coordinator) -> list[Any]:
    """Its work is held back, and the permitted are let through. Returns these events."""
    await opened(world, coordinator)
    coordinator.hold_back()
    events = await coordinator.tick(POLICY.cool_down / SECOND)
    assert world.state is HALF_OPEN
    return events


async def test_a_target_that_answers_costs_no_visit() -> None:
    world = World()
    coordinator = Coordinator(world)
    for _ in range(50):
        coordinator.outcome(has_failed=False)
    await coordinator.tick()
    assert world.rows == {}
    assert not coordinator.circuits.has_open
    # With its first failure the answers of the window count.
    coordinator.outcome()
    await coordinator.tick()
    assert (sum(world.rows[KEY].window.answers), sum(world.rows[KEY].window.failures)) == (50, 1)


async def test_failures_open_the_circuit_and_others_hear_of_it_within_a_second() -> None:
    world = World()
    first, second = Coordinator(world), Coordinator(world)
    await second.tick()
    await opened(world, first)
    assert first.circuits.has_open
    assert [each.target for each in first.holds()] == [TARGET]
    await second.tick(0.5)
    await second.tick(0.5)
    assert second.circuits.has_open


async def test_a_run_that_was_granted_before_the_circuit_opened_changes_nothing() -> None:
    world = World()
    coordinator = Coordinator(world)
    await opened(world, coordinator)
    await coordinator.store.reset(*KEY)
    await coordinator.tick(1.0)
    for _ in range(50):
        coordinator.outcome(ago=1.5)
    await coordinator.tick()
    assert world.state is CLOSED
    for _ in range(10):
        coordinator.outcome()
    await coordinator.tick()
    assert world.state is OPEN


async def test_a_run_that_another_coordinator_has_granted_changes_nothing() -> None:
    """Its clock may differ from ours."""
    world = World()
    coordinator = Coordinator(world)
    coordinator.owned.adopted_seq = 100
    for _ in range(50):
        coordinator.outcome()
    await coordinator.tick()
    assert world.rows == {}


async def test_the_time_of_the_next_probe_is_known_while_the_circuit_is_open() -> None:
    world = World()
    coordinator = Coordinator(world)
    assert coordinator.circuits.probe_time(KEY) == 0
    hours_later = world.now + 7_200 * SECOND
    world.rows[KEY] = opened_by_hand(Circuit(*KEY), hours_later, world.now)
    await coordinator.tick(1.0)
    assert abs(coordinator.circuits.probe_time(KEY) - hours_later) < SECOND
    (held,) = coordinator.holds()
    assert held.until < hours_later - 3_600 * SECOND, "work looks at the circuit more often than that"


async def test_so_many_are_let_through_by_permits_and_the_rest_waits() -> None:
    world = World()
    coordinator = Coordinator(world, 20)
    events = await half_open(world, coordinator)
    assert [type(event) for event in events] == [WorkLetThrough] * POLICY.permits_max
    assert all(event.is_probe for event in events)
    assert await coordinator.tick() == []
    # They may be given to a runner, which is not told that their own target is closed to them.
    assert coordinator.holds() == []
    coordinator.story.assign()
    live = list(coordinator.story.execution.live.values())
    assert [coordinator.circuits.open_names(coordinator.story.execution, run) for run in live] == [[]] * 3


async def test_answers_of_the_probes_let_the_rest_through_in_waves() -> None:
    world = World()
    coordinator = Coordinator(world, 50)
    events = await half_open(world, coordinator)
    for event in events:
        coordinator.outcome(has_failed=False, is_probe=True, number=int(event.key.node[1:]))
    counts = [len(await coordinator.tick()) for _ in range(4)]
    assert world.state is CLOSED
    assert counts == [10, 20, 17, 0]


async def test_a_failed_probe_opens_it_again_and_the_rest_waits_until_the_next_time() -> None:
    world = World()
    coordinator = Coordinator(world, 20)
    events = await half_open(world, coordinator)
    coordinator.story.assign()
    for event in events:
        coordinator.story.succeed(event.key.node)
    coordinator.outcome(is_probe=True, number=int(events[0].key.node[1:]))
    held = await coordinator.tick()
    assert world.state is OPEN
    assert {type(event) for event in held} == {WorkHeldBack}
    assert len(held) == 17
    assert min(event.until_time for event in held) >= world.now + 2 * POLICY.cool_down
    # They do not all wake at once.
    assert len({event.until_time for event in held}) > 1
    assert await coordinator.tick() == []


async def test_a_permit_of_an_earlier_opening_lets_nothing_through() -> None:
    world = World()
    coordinator = Coordinator(world, 20)
    await half_open(world, coordinator)
    assert coordinator.holds() == []
    await coordinator.store.open(*KEY, world.now + SECOND)
    await coordinator.tick(1.0)
    assert len(coordinator.holds()) == POLICY.permits_max


async def test_a_permit_is_renewed_while_its_probe_is_under_way() -> None:
    world = World()
    coordinator = Coordinator(world, 20)
    await half_open(world, coordinator)
    coordinator.story.assign()
    for _ in range(30):
        await coordinator.tick(2.0)
    assert len(coordinator.story.execution.live) == POLICY.permits_max
    (standing,) = await coordinator.store.standings()
    assert standing.permits == POLICY.permits_max


async def test_a_coordinator_that_no_dispatcher_hears_keeps_no_permit_from_others() -> None:
    world = World()
    alone, other = Coordinator(world, count=POLICY.permits_max), Coordinator(world)
    await half_open(world, alone)
    alone.may_start = False
    other.hold_back()
    for _ in range(6):
        await alone.tick(POLICY.permit_term / SECOND / 5)
    # The permits are over, and the next visit asks for them.
    await other.tick(1.0)
    assert WorkLetThrough in [type(event) for event in await other.tick(1.0)]


async def test_the_permit_of_work_that_is_cancelled_is_given_back() -> None:
    world = World()
    coordinator = Coordinator(world, 3)
    await half_open(world, coordinator)
    coordinator.story.cancel()
    await coordinator.tick()
    assert world.rows[KEY].permits == ()


async def test_work_of_a_paused_execution_takes_no_permit_from_others() -> None:
    world = World()
    coordinator = Coordinator(world, 5)
    await half_open(world, coordinator)
    coordinator.story.pause()
    assert await coordinator.tick() == []
    assert world.rows[KEY].permits == ()
    # What it was let through for is held back when it goes on, and asks again.
    coordinator.story.resume()
    assert len(coordinator.holds()) == POLICY.permits_max
    coordinator.hold_back()
    events = [event for _ in range(2) for event in await coordinator.tick()]
    assert len(events) == POLICY.permits_max


async def test_the_permit_of_an_execution_that_goes_to_another_coordinator_is_kept() -> None:
    world = World()
    coordinator = Coordinator(world, 3)
    await half_open(world, coordinator)
    names = {permit_name(coordinator.story.execution, WorkKey(f"n{number}")) for number in range(3)}
    coordinator.story.assign()
    coordinator.owned.is_dropped = True
    await coordinator.tick()
    assert {each.work for each in world.rows[KEY].permits} == names


async def test_work_that_was_parked_is_still_counted_as_waiting() -> None:
    world = World()
    coordinator = Coordinator(world, 5)
    await opened(world, coordinator)
    coordinator.hold_back(20.0)
    await coordinator.tick()
    assert world.rows[KEY].waiting[0].works == 5
    coordinator.circuits.parked(coordinator.story.execution, 1)
    coordinator.owned.is_dropped = True
    await coordinator.tick(4.0)
    assert world.rows[KEY].waiting[0].works == 5
    await coordinator.tick(20.0)
    assert world.rows[KEY].waiting == ()


async def test_an_execution_that_was_woken_stays_until_its_work_is_let_through() -> None:
    world = World()
    coordinator = Coordinator(world)
    await opened(world, coordinator)
    coordinator.hold_back(300.0)
    execution = coordinator.story.execution
    assert not coordinator.circuits.goes_on(execution)
    world.rows[KEY] = reset(world.rows[KEY])
    await coordinator.tick(1.0)
    assert not execution.held_back
    coordinator.hold_back(300.0)
    assert coordinator.circuits.goes_on(execution)
    coordinator.story.when(Pause("m", "ann"))
    assert not coordinator.circuits.goes_on(execution)


async def test_while_the_database_is_away_nothing_is_let_through_and_probes_are_told_later() -> None:
    world = World()
    coordinator = Coordinator(world, 20)
    events = await half_open(world, coordinator)
    coordinator.store.is_away = True
    for event in events:
        coordinator.outcome(has_failed=False, is_probe=True, number=int(event.key.node[1:]))
    for _ in range(3):
        with pytest.raises(DependencyUnavailable):
            await coordinator.tick()
    assert coordinator.owned.inbox == []
    coordinator.store.is_away = False
    await coordinator.tick()
    assert world.state is CLOSED


async def test_the_loop_outlives_an_outage() -> None:
    world = World()
    coordinator = Coordinator(world)
    coordinator.store.is_away = True
    running = asyncio.ensure_future(coordinator.circuits.run())
    for _ in range(3):
        await asyncio.sleep(0)
        world.clock.advance(1.0)
    assert not running.done()
    running.cancel()


async def test_many_targets_of_a_workspace_are_not_all_remembered() -> None:
    world = World()
    coordinator = Coordinator(world)
    for number in range(1_100):
        told = TargetOutcome(f"x.y@1 t{number}", False, WorkKey("n0"), False, 99, world.now)
        coordinator.circuits.note(coordinator.owned, [told])
    first, last = (
        TargetOutcome(f"x.y@1 t{number}", True, WorkKey("n0"), False, 99, world.now) for number in (0, 1_099)
    )
    coordinator.circuits.note(coordinator.owned, [last, first])
    await coordinator.tick()
    answers = {row.target: sum(row.window.answers) for row in world.rows.values()}
    assert answers == {"x.y@1 t1099": 1, "x.y@1 t0": 0}


def noted(story: Story, error: Error | None, *, times: int = 1, **more: Any) -> list[TargetOutcome]:
    """What is noted when the report of the only run is decided, as often as it comes."""
    owned = OwnedExecution(EXECUTION_ID, 1, start_command(ExecutionGrant(), "c1"), execution=story.execution)
    pending = PendingAppend(owned, story.execution, codec)
    run = story.run("a")
    head: dict[str, Any] = {"run": run.number, "epoch": run.epoch, "target": "crm"} | more
    done = ReportSuccess(**head, output=b"{}") if error is None else ReportFailure(**head, error=error, random=0.0)
    owned.inbox = [Input(done)] * times
    pending.decide_inbox(story.now, 1_000_000)
    return pending.outcomes


@pytest.mark.parametrize(
    ("error_class", "has_failed"),
    [(None, False), (ErrorClass.TRANSIENT, True), (ErrorClass.TIMEOUT, True), (ErrorClass.PERMANENT, False)],
)
def test_what_the_class_of_an_error_says_about_the_target(error_class: ErrorClass | None, has_failed: bool) -> None:
    error = None if error_class is None else Error(error_class, "X", "x")
    (outcome,) = noted(begun(), error, times=3)
    assert (outcome.target, outcome.has_failed, outcome.is_probe) == ("noop@1 crm", has_failed, False)


def test_reports_that_say_nothing_about_a_target() -> None:
    assert noted(begun(), None, target="") == []
    assert noted(begun(), None, instance_id="another") == []
    assert noted(begun(), None, epoch=77) == []
    assert noted(begun(), Error(ErrorClass.CIRCUIT_OPEN, "X", "found by the module itself")) == []


async def test_a_report_says_when_the_circuit_may_let_its_work_through() -> None:
    world = World()
    coordinator = Coordinator(world)
    await opened(world, coordinator)
    coordinator.story.assign()
    run = coordinator.story.run("n0")
    report = ReportHeldBack(run.number, run.epoch, "example.org:443")
    coordinator.executions.by_id[EXECUTION_ID] = coordinator.owned
    coordinator.executions.put(coordinator.owned, report)
    coordinator.circuits.date(coordinator.owned)
    assert report.until >= world.now + POLICY.cool_down - 2 * SECOND
