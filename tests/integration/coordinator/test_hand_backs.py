"""Runners that hand back what they are granted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from services.chassis.postgres.database import Database
from services.coordinator.core.events import RunLeased, RunReleased
from services.coordinator.core.values import SECOND
from tests.support.coordinator_stage import Stage, StageRunner, eventually
from tests.support.journals import stored_events
from windlass.coordinator.v1 import sessions_pb2 as runs_pb

HAND_BACKS = 4


def refuse(runner: StageRunner, grant: Any) -> None:
    runner.holder.rules.refuse(grant.lease.lease_id, grant.lease.epoch, "UNKNOWN_MODULE")


def release(runner: StageRunner, grant: Any, cursor: bytes = b"") -> None:
    report = runs_pb.RunReport()
    report.head.report_id = runner.holder.new_report_id()
    report.head.lease_id, report.head.epoch = grant.lease.lease_id, grant.lease.epoch
    report.released.reason, report.released.cursor = "RENDERER_BUSY", cursor
    runner.holder.report(report.head.report_id, grant.lease.lease_id, grant.lease.epoch, report, ends_lease=True)


async def story_of(tables: Database, id_: str) -> list[tuple[int, ...]]:
    """The times at which runs were leased and handed back, in pairs."""
    stored = await stored_events(tables, id_)
    leased = [each.event.time for each in stored if isinstance(each.event, RunLeased)]
    released = [each.event.time for each in stored if isinstance(each.event, RunReleased)]
    return list(zip(leased, released, strict=False))


@pytest.mark.parametrize("hand_back", [refuse, release])
async def test_runner_that_hands_back_all_is_granted_the_work_less_and_less(
    on_stage: Stage, tables: Database, hand_back: Callable[[StageRunner, Any], None]
) -> None:
    version = on_stage.catalog.add("v-one", name="w", nodes=[{"id": "a", "module": "noop@1"}], edges=[])
    session, runner = await on_stage.with_runner(is_silent=True)
    runner.work = lambda grant: hand_back(runner, grant)
    order = on_stage.start(session, version)
    await eventually(lambda: len(runner.grants) >= HAND_BACKS)
    story = await story_of(tables, order.lease.lease_id)
    waits = [(again - before) / SECOND for (_, before), (again, _) in pairwise(story)]
    assert all(wait >= least for wait, least in zip(waits, (0.25, 0.5, 1.0), strict=False)), waits


async def test_another_runner_is_granted_what_one_hands_back(on_stage: Stage) -> None:
    version = on_stage.catalog.add("v-one", name="w", nodes=[{"id": "a", "module": "noop@1"}], edges=[])
    address, session = await on_stage.coordinator()
    refusing = await on_stage.runner(address, "refusing")
    refusing.work = lambda grant: refuse(refusing, grant)
    order = on_stage.start(session, version)
    await eventually(lambda: refusing.grants)
    willing = await on_stage.runner(address, "willing")
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert len(willing.grants) == 1
