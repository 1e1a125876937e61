"""The deadline of an attempt as its module is told."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from services.chassis.lease.frames import Grant
from services.runner.core.job import Job
from services.runner.peers.coordinators import CoordinatorSessions
from tests.support.manual_clock import ManualClock
from tests.support.runner_bench import Bench, a_job
from windlass.coordinator.v1 import sessions_pb2 as pb

SOON = 2_000_000_000
FAR = 3_000_000_000
BILLION = 1_000_000_000


class Jobs:
    """Keeps the jobs that the worker is given."""

    def __init__(self) -> None:
        self.taken: list[Job] = []

    def take(self, jobs: list[Job]) -> None:
        self.taken += jobs


@pytest.mark.parametrize("seconds_left", [0, 90, None])
def test_what_is_left_of_an_executions_deadline_counts_from_the_grants_arrival(seconds_left: int | None) -> None:
    clock, jobs = ManualClock(), Jobs()
    sessions = CoordinatorSessions(clock)
    sessions.join(cast("Any", None), cast("Any", jobs))
    grant = pb.RunGrant()
    if seconds_left is not None:
        grant.execution_left.SetInParent()
        grant.execution_left.FromSeconds(seconds_left)
    clock.advance(7.0)
    sessions.on_grants([Grant("e.1", 1, grant)])
    (job,) = jobs.taken
    assert job.deadline_ns == (0 if seconds_left is None else clock.epoch_ns() + seconds_left * BILLION)


async def deadline_of(directory: Any, **given: Any) -> datetime | None:
    bench = Bench(directory)
    told: list[datetime | None] = []
    bench.registry.declare("test.told@1")(lambda ctx, _inputs, _config: told.append(ctx.deadline))
    await bench.outcome(a_job("test.told@1", **given))
    return told[0]


async def test_module_is_told_the_earlier_of_its_nodes_timeout_and_its_executions_deadline(tmp_path: Any) -> None:
    year = 365 * 86_400.0
    of_execution = datetime.fromtimestamp(SOON, UTC)
    long = await deadline_of(tmp_path, deadline_ns=SOON * BILLION, timeout_seconds=20 * year)
    assert long == of_execution
    own = await deadline_of(tmp_path, deadline_ns=FAR * BILLION, timeout_seconds=60.0)
    assert own is not None
    assert own < datetime.fromtimestamp(FAR, UTC)


@pytest.mark.parametrize("deadline_ns", [0, SOON * BILLION])
async def test_attempt_of_a_node_without_a_timeout_ends_after_a_day(tmp_path: Any, deadline_ns: int) -> None:
    before = datetime.now(UTC)
    deadline = await deadline_of(tmp_path, deadline_ns=deadline_ns)
    assert deadline is not None
    assert timedelta(days=1) <= deadline - before < timedelta(days=1, minutes=1)
