"""A dead runner's runs are given away in time, and its death is counted once."""

import asyncio
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from services.chassis.session.store import EndedInstance
from services.coordinator.app.dead_runners import DeadRunners
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.rpc.runners import SessionRunners

GRANTED_AGAIN = 16.0


class Losses:
    """The part of the owned executions that hears of dead runners."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    def runner_lost(self, instance_id: str, *, is_idempotent_only: bool) -> None:
        self.heard.append((instance_id, is_idempotent_only))


def ended() -> float:
    return REGISTRY.get_sample_value("coordinator_runners_ended_total") or 0.0


def dead_runners_of(losses: Losses) -> DeadRunners:
    return DeadRunners(cast("OwnedExecutions", losses), GRANTED_AGAIN)


async def test_work_that_must_not_be_done_twice_waits_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, later = Losses(), list[Any]()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *given: later.append(given))
    dead_runners_of(losses).add("i", 1.0)
    assert losses.heard == [("i", True)]
    ((seconds, work, *given),) = later
    assert seconds == GRANTED_AGAIN - 1.0
    work(*given)
    assert losses.heard[-1] == ("i", False)


async def test_dead_runner_is_news_once_however_often_it_is_told() -> None:
    losses = Losses()
    owner = SessionRunners(cast("Any", None), dead_runners_of(losses), cast("Any", None))
    before = ended()
    for unheard_seconds in (1.0, 8.0, 20.0, 21.0):
        owner.on_ended([EndedInstance("i", "runner", unheard_seconds)])
    assert ended() == before + 1
    assert losses.heard == [("i", True), ("i", True), ("i", False), ("i", False)]
