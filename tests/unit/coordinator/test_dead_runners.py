"""A dead runner's runs are given away in time, and its death is counted once."""

from typing import cast

from prometheus_client import REGISTRY

from services.chassis.session.store import EndedInstance
from services.coordinator.app.dead_runners import DeadRunners
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.rpc.runners import SessionRunners
from tests.support.manual_clock import ManualClock

GRANTED_AGAIN = 16.0


class Losses:
    """The part of the owned executions that hears of dead runners."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    def runner_lost(self, instance_id: str, *, is_idempotent_only: bool) -> None:
        self.heard.append((instance_id, is_idempotent_only))


def ended() -> float:
    return REGISTRY.get_sample_value("coordinator_runners_ended_total") or 0.0


def dead_runners_of(losses: Losses, clock: ManualClock) -> DeadRunners:
    return DeadRunners(cast("OwnedExecutions", losses), clock, GRANTED_AGAIN)


def test_work_that_must_not_be_done_twice_waits_until_the_time_is_over() -> None:
    losses, clock = Losses(), ManualClock()
    dead_runners = dead_runners_of(losses, clock)
    dead_runners.add("i", 1.0)
    assert losses.heard == [("i", True)]
    clock.advance(GRANTED_AGAIN - 1.1)
    dead_runners.run_once()
    assert losses.heard == [("i", True)]
    clock.advance(0.2)
    dead_runners.run_once()
    assert losses.heard[-1] == ("i", False)


def test_dead_runner_is_news_once_however_often_it_is_told() -> None:
    losses = Losses()
    owner = SessionRunners()
    owner.dead_runners = dead_runners_of(losses, ManualClock())
    before = ended()
    for unheard_seconds in (1.0, 8.0, 20.0, 21.0):
        owner.on_ended([EndedInstance("i", "runner", unheard_seconds)])
    assert ended() == before + 1
    assert losses.heard == [("i", True), ("i", True), ("i", False), ("i", False)]
