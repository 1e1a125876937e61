"""Executions that were parked because a circuit was open are woken in waves when it closes."""

from collections.abc import Sequence

import pytest

from services.chassis.grpc.errors import DependencyUnavailable
from services.coordinator.app.parked_waits import CircuitKey, ParkedWait, ParkedWaits, ParkedWaking
from services.coordinator.core.commands import HeldWork, HoldBack
from services.coordinator.core.state import Execution
from services.coordinator.core.values import SECOND
from tests.support.manual_clock import ManualClock
from tests.support.story import node, started

TARGET = "http.request@1 example.org:443"


class Stage:
    """A coordinator that has parked executions, and the dispatchers that it calls."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.waits = ParkedWaits()
        self.waking = ParkedWaking(waits=self.waits, is_open=lambda circuit: self.is_open, queue=self, clock=self.clock)
        self.is_open = True
        self.is_away = False
        # Their reports have not arrived at the dispatchers.
        self.held: set[int] = set()
        # The epochs of the executions, wave by wave.
        self.woken: list[list[int]] = []

    async def wake(self, workspace: str, waits: Sequence[ParkedWait]) -> frozenset[str]:
        if self.is_away:
            raise DependencyUnavailable("dispatcher", "away")
        self.woken.append([each.epoch for each in waits if each.epoch not in self.held])
        return frozenset(each.execution_id for each in waits if each.epoch in self.held)

    @property
    def now(self) -> int:
        return self.clock.epoch_ns() // 1_000

    def park(self, epoch: int, seconds: float = 300.0, nodes: int = 1) -> CircuitKey:
        """Park an execution whose work waits for so many seconds at most."""
        execution = self._waiting(seconds, nodes)
        execution.execution_id = f"e{epoch}"
        self.waits.add(execution, epoch)
        return execution.origin.workspace, TARGET

    def _waiting(self, seconds: float, nodes: int) -> Execution:
        config = {"url": "https://example.org/"}
        story = started(*[node(f"n{number}", "http.request@1", config=config) for number in range(nodes)])
        until = self.now + int(seconds * SECOND)
        story.when(HoldBack([HeldWork(work.key, TARGET, until) for work in list(story.execution.ready)]))
        execution: Execution = story.execution
        return execution


async def test_nobody_is_woken_while_the_circuit_is_open() -> None:
    stage = Stage()
    stage.park(1)
    await stage.waking.run_once()
    assert stage.woken == []


async def test_each_wave_is_twice_as_large_and_those_that_wait_longest_go_first() -> None:
    stage = Stage()
    for epoch in range(1, 51):
        circuit = stage.park(epoch, nodes=2)
    assert stage.waits.works_at(circuit, stage.now) == 100
    stage.is_open = False
    for _ in range(4):
        await stage.waking.run_once()
    assert stage.woken == [list(range(1, 11)), list(range(11, 31)), list(range(31, 51))]
    assert stage.waits.works_at(circuit, stage.now) == 0
    assert not stage.waits.circuits()


async def test_when_the_circuit_opens_again_the_rest_stays_parked_and_the_next_waves_begin_small() -> None:
    stage = Stage()
    for epoch in range(1, 51):
        stage.park(epoch)
    for is_open in (False, False, True, False):
        stage.is_open = is_open
        await stage.waking.run_once()
    assert [len(each) for each in stage.woken] == [10, 20, 10]


async def test_an_execution_whose_report_is_under_way_is_woken_later() -> None:
    stage = Stage()
    for epoch in (1, 2):
        circuit = stage.park(epoch)
    stage.is_open, stage.held = False, {1}
    await stage.waking.run_once()
    assert (stage.woken, stage.waits.works_at(circuit, stage.now)) == ([[2]], 1)
    stage.held = set()
    await stage.waking.run_once()
    assert stage.woken == [[2], [1]]


async def test_without_a_dispatcher_they_are_woken_later() -> None:
    stage = Stage()
    circuit = stage.park(1)
    stage.is_open, stage.is_away = False, True
    with pytest.raises(DependencyUnavailable):
        await stage.waking.run_once()
    assert stage.waits.works_at(circuit, stage.now) == 1
    stage.is_away = False
    await stage.waking.run_once()
    assert stage.woken == [[1]]


async def test_one_that_looks_by_itself_is_not_woken() -> None:
    stage = Stage()
    circuit = stage.park(1, seconds=20.0)
    stage.clock.advance(22.0)
    stage.is_open = False
    await stage.waking.run_once()
    assert (stage.woken, stage.waits.works_at(circuit, stage.now)) == ([], 0)
