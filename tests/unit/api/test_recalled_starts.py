"""A dispatcher is asked whether a refused start was started before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status

from services.api.app.executions import Executions
from services.api.app.starts import StartCommand
from services.api.rpc.starting import Starting
from services.chassis.grpc.errors import DependencyUnavailable, Refusal, RemoteError, remote_status
from services.chassis.telemetry.tracing import Sampler
from tests.support.manual_clock import ManualClock
from windlass.api.v1 import executions_pb2


class Refusing:
    """A starter that refuses all, and cannot recall any."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        # The limits of violations that it was given.
        self.violations_max: set[int] = set()

    async def prepare(self, workspace: str, command: StartCommand, violations_max: int) -> Any:
        self.violations_max.add(violations_max)
        raise Refusal("WORKFLOW_ARCHIVED", f"{command.workflow} is archived")

    async def recall(self, workspace: str, commands: Sequence[StartCommand]) -> Sequence[str | None]:
        raise self.failure


def starting(refusing: Any) -> Starting:
    nothing: Any = None
    executions = Executions(nothing, nothing, nothing, ManualClock())
    return Starting(refusing, executions, nothing, Sampler(0.0), ManualClock())


def reason(status: Status) -> str:
    return remote_status(status).reason


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RemoteError(grpc.StatusCode.UNKNOWN, "", "").refusal(), "INTERNAL"),
        (Refusal("INTERNAL", "internal error"), "INTERNAL"),
        (DependencyUnavailable("the dispatcher"), "DEPENDENCY_UNAVAILABLE"),
    ],
)
async def test_refused_start_has_no_other_outcome_while_dispatchers_cannot_answer(
    failure: Exception, told: str
) -> None:
    """They may know that it was started before."""
    request = executions_pb2.StartExecutionRequest(workflow="intake", request_id="r")
    items = await starting(Refusing(failure)).all([request, request], None, 1.0)
    assert [reason(item.status) for item in items] == [told, told]


@pytest.mark.parametrize(("size", "share"), [(1, 50), (20, 50), (100, 10), (1_000, 1)])
async def test_violations_are_shared_out_among_the_items_of_a_batch(size: int, share: int) -> None:
    refusing = Refusing(DependencyUnavailable("the dispatcher"))
    request = executions_pb2.StartExecutionRequest(workflow="intake")
    await starting(refusing).all([request] * size, None, 1.0)
    assert refusing.violations_max == {share}
