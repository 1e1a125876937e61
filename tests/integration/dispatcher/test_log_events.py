"""The published log events: their text, their level and their fields."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.dispatcher.core.items import EnqueueOutcome, LeaseFinished
from tests.integration.dispatcher.conftest import LIMITS, Rig, new_start
from tests.integration.dispatcher.parties import SECONDS, Api, Coordinator
from tests.integration.dispatcher.test_admission_loop import Stage
from tests.integration.dispatcher.test_service import in_state, item
from tests.support.probe import until
from windlass.dispatcher.v1 import queue_pb2, sessions_pb2

Line = MutableMapping[str, Any]


class Log:
    """The lines logged since the test began."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def of(self, event: str, **fields: object) -> list[Line]:
        """The lines of this event that have these fields, without the fields of every line."""
        return [
            {name: value for name, value in line.items() if name not in {"event", "origin"}}
            for line in self._lines
            if line["event"] == event and fields.items() <= line.items()
        ]

    async def one(self, event: str, **fields: object) -> Line:
        await until(lambda: self.of(event, **fields), SECONDS, f"a line {event!r}")
        (line,) = self.of(event, **fields)
        return line


@pytest.fixture
def log() -> Iterator[Log]:
    with capture_logs() as lines:
        yield Log(lines)


async def test_workspace_is_told_to_be_at_capacity_once_each_time_it_comes_to_it(empty_rig: Rig, log: Log) -> None:
    stage = Stage(empty_rig, credit=100)
    stage.bring(*[new_start("full") for _ in range(LIMITS.executions_max + 1)])
    await stage.admission_loop.run_once()
    line = {"workspace": "full", "active": LIMITS.executions_max, "limit": LIMITS.executions_max, "log_level": "info"}
    assert log.of("workspace at capacity") == [line]
    stage.bring(new_start("full"))
    await stage.admission_loop.run_once()
    assert log.of("workspace at capacity") == [line]
    # All executions end, and the free slots fill again.
    ended = 0
    while ended < LIMITS.executions_max + 2:
        claims = stage.recorder.claims[ended:]
        for claim in claims:
            stage.report(claim.execution_id, LeaseFinished(claim.execution_id, claim.epoch))
        ended += len(claims)
        await stage.admission_loop.run_once()
    stage.bring(new_start("full"))
    await stage.admission_loop.run_once()
    assert log.of("workspace at capacity") == [line]
    stage.bring(*[new_start("full") for _ in range(LIMITS.executions_max)])
    await stage.admission_loop.run_once()
    assert log.of("workspace at capacity") == [line] * 2


async def test_workspace_without_limits_is_not_found_and_looked_at_once(empty_rig: Rig, log: Log) -> None:
    stage = Stage(empty_rig)
    stage.inbox.polled(["nowhere"], False)
    await stage.admission_loop.run_once()
    assert not stage.admission_loop.has_work
    assert log.of("workspace not found") == [{"workspace": "nowhere", "log_level": "warning"}]


async def test_item_that_cannot_be_stored_stands_alone_and_is_an_error(empty_rig: Rig, log: Log) -> None:
    stage = Stage(empty_rig)
    bad = new_start("unstorable", request_id="nul \x00")
    stage.bring(good := new_start("unstorable"), bad)
    await stage.admission_loop.run_once()
    assert stage.outcomes(good, bad) == [EnqueueOutcome.QUEUED, EnqueueOutcome.REJECTED]
    (line,) = log.of("error processing item")
    assert (line["log_level"], line["execution_id"]) == ("error", bad.execution_id)
    assert line["error"]


async def test_grant_and_its_taking_are_told(address: str, api: Api, log: Log) -> None:
    async with Coordinator(address, name="taker") as coordinator:
        grant = await coordinator.take(api, item("told"))
        lease = {"execution_id": grant.lease.lease_id, "epoch": grant.lease.epoch}
        assert await log.one("dispatching item", **lease) == {**lease, "workspace": "told", "log_level": "info"}
        assert await log.one("dispatched execution", **lease) == {**lease, "holder": "taker", "log_level": "info"}
        await coordinator.finished(grant)


async def test_execution_that_failed_to_start_is_an_error_each_time_and_the_last_gives_it_up(
    address: str, api: Api, log: Log
) -> None:
    async with Coordinator(address) as coordinator:
        sent = item("failing", executions_max=1)
        await api.enqueue(sent)
        for attempt in (1, 2, 3):
            grant = (await coordinator.granted(attempt))[attempt - 1]
            coordinator.release(grant, failed=True, reason="DEFINITION_AWAY", message=f"try {attempt}")
        id_ = sent.start.execution_id
        row = await in_state(api, id_, queue_pb2.Queued.FAILED)
        assert (row.failure_reason, row.failure_message) == ("DEFINITION_AWAY", "try 3")
        assert row.dispatch_attempts == 3
        assert await log.one("error processing item", execution_id=id_) == {
            "execution_id": id_,
            "workspace": "failing",
            "reason": "DEFINITION_AWAY",
            "log_level": "error",
        }
        assert log.of("failed to start", execution_id=id_) == [
            {
                "execution_id": id_,
                "reason": "DEFINITION_AWAY",
                "error": f"try {attempt}",
                "attempts": attempt,
                "log_level": "error",
            }
            for attempt in (1, 2, 3)
        ]
        await api.enqueue(item("failing", executions_max=1))
        await coordinator.finished((await coordinator.granted(4))[3])


async def test_malformed_item_is_an_error(api: Api, log: Log) -> None:
    await api.enqueue(item("malformed", execution_id="no-uuid"))
    line = await log.one("error processing item", execution_id="no-uuid")
    assert line["log_level"] == "error"
    assert line["error"]


async def test_closed_workspace_takes_nothing_and_what_it_had_waiting_is_an_error(api: Api, log: Log) -> None:
    sent = item("closing")
    await api.enqueue(sent)
    limits = queue_pb2.TenantLimits(executions_max=5, queued_max=5, revision=2)
    await api.queue.ConfigureWorkspace(
        queue_pb2.ConfigureWorkspaceRequest(workspace="closing", limits=limits, closed=True)
    )
    assert await log.one("error processing item", execution_id=sent.start.execution_id) == {
        "execution_id": sent.start.execution_id,
        "reason": "WORKSPACE_CLOSED",
        "log_level": "error",
    }
    assert (await in_state(api, sent.start.execution_id, queue_pb2.Queued.FAILED)).failure_reason
    (answer,) = await api.enqueue(item("closing"))
    assert answer.outcome == queue_pb2.EnqueueAnswer.WORKSPACE_CLOSED


@pytest.mark.parametrize("kind", ["finish", "release"])
async def test_late_report_is_told_with_who_brought_it_and_why_it_is_refused(
    address: str, api: Api, log: Log, kind: str
) -> None:
    async with Coordinator(address) as coordinator:
        grant = await coordinator.take(api, item(f"late-{kind}"))
        stale = sessions_pb2.ExecutionGrant()
        stale.CopyFrom(grant)
        stale.lease.epoch -= 1
        getattr(coordinator, kind)(stale)
        await until(lambda: coordinator.refused, SECONDS, "the refusal")
        assert await log.one("late report refused") == {
            "execution_id": grant.lease.lease_id,
            "epoch": stale.lease.epoch,
            "report": {"finish": "LeaseFinished", "release": "LeaseReleased"}[kind],
            "holder_instance": coordinator.holder.instance_id,
            "reason": "EPOCH_STALE",
            "log_level": "warning",
        }
        await coordinator.finished(grant)
