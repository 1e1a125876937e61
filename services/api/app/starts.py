"""Starts executions: check the input against the version, make the id, queue the start, return the outcome.

Order matters. The id exists before anything is sent, so that a caller that waits for the end can subscribe before the
execution can run. The queue decides whether a request_id was used before, in the transaction that would store the
start, so that two replicas of api never both start it. A start that fails its check may still repeat one that passed,
before a stricter version was applied or the workflow was archived; only then does `recall` ask the queue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from services.api.app import refusals
from services.api.app.identifiers import Identifiers
from services.api.app.ports import Checker, Enqueuer, UsedRequests
from services.api.app.schema_reader import INPUT_BYTES_MAX, VIOLATIONS_MAX
from services.api.app.startables import Startables
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.tracing import TraceContext
from windlass.dispatcher.v1 import queue_pb2
from windlass.types.v1 import start_pb2

PRIORITY_DEFAULT: Final = 3
MANUAL: Final = 1
_Outcome = queue_pb2.EnqueueAnswer
_BILLION: Final = 1_000_000_000


class StartCommand(NamedTuple):
    workflow: str
    version: int
    input: Mapping[str, Any]
    request_id: str
    labels: Mapping[str, str]
    priority: int
    # In nanoseconds; 0: no timeout.
    timeout: int


class Existing(NamedTuple):
    """An earlier start with the same request_id."""

    workspace: str
    execution_id: str


class Starter:
    def __init__(
        self,
        startables: Startables,
        enqueuer: Enqueuer,
        used: UsedRequests,
        checker: Checker,
        identifiers: Identifiers,
        clock: Clock,
        *,
        enqueue_seconds: float,
    ) -> None:
        self._startables = startables
        self._enqueuer = enqueuer
        self._used = used
        self._checker = checker
        self._identifiers = identifiers
        self._clock = clock
        self._enqueue_seconds = enqueue_seconds

    async def prepare(
        self,
        workspace: str,
        title: str,
        command: StartCommand,
        trace: TraceContext,
        violations_max: int = VIOLATIONS_MAX,
    ) -> queue_pb2.EnqueueItem:
        """Raise every refusal that is possible without asking the queue."""
        startable = await self._startables.get(workspace, command.workflow, command.version)
        content = orjson.dumps(command.input)
        if len(content) > INPUT_BYTES_MAX:
            raise refusals.invalid_field("input", "TOO_LARGE", f"{len(content)} bytes; at most {INPUT_BYTES_MAX}")
        if startable.check is not None:
            violations = await startable.check.violations(
                self._checker, workspace, command.input, content, violations_max
            )
            if violations:
                raise refusals.input_mismatch(command.workflow, violations)
        # Tables keep microseconds: the answer now must equal what is read later.
        now = self._clock.epoch_ns() // 1_000 * 1_000
        order = start_pb2.StartOrder(
            execution_id=self._identifiers.mint(),
            workspace=workspace,
            workflow=command.workflow,
            version=startable.version,
            version_id=startable.version_id,
            input=content,
            labels=command.labels,
            priority=command.priority or PRIORITY_DEFAULT,
            request_id=command.request_id,
            trigger_type=MANUAL,
            caller=title,
            traceparent=trace.header(),
        )
        order.create_time.seconds, order.create_time.nanos = divmod(now, _BILLION)
        timeout = _shorter(command.timeout, startable.timeout * 1_000)
        if timeout:
            order.deadline_time.seconds, order.deadline_time.nanos = divmod(now + timeout, _BILLION)
        item = queue_pb2.EnqueueItem(start=order, limits=startable.limits)
        if command.request_id:
            item.request_hash = _request_hash(command)
        return item

    async def recall(self, workspace: str, commands: Sequence[StartCommand]) -> Sequence[Existing | Refusal | None]:
        """The queue's answer to each request_id; None where it was not used before."""
        asked = sorted({command.request_id for command in commands})
        used = {each.request_id: each for each in await self._used.requests(workspace, asked)}
        return [_recalled(workspace, command, used.get(command.request_id)) for command in commands]

    def submit(self, item: queue_pb2.EnqueueItem) -> Coroutine[Any, Any, start_pb2.StartOrder | Existing]:
        """Send the start at once; it is durable when the answer comes."""
        crash_point("api.start.before_enqueue")
        return self._settled(item, self._enqueuer.enqueue(item, self._enqueue_seconds))

    async def _settled(
        self, item: queue_pb2.EnqueueItem, answering: Awaitable[queue_pb2.EnqueueAnswer]
    ) -> start_pb2.StartOrder | Existing:
        answer = await answering
        crash_point("api.start.after_enqueue")
        order = item.start
        if answer.outcome in (_Outcome.QUEUED, _Outcome.EXISTING):
            existing = answer.existing_execution_id
            # Its own id means that we have sent it twice.
            is_new = existing in ("", order.execution_id)
            return order if is_new else Existing(order.workspace, existing)
        if answer.outcome == _Outcome.WORKSPACE_CLOSED:
            self._startables.forget(order.workspace)
        raise _refusal(answer, item)


def _recalled(workspace: str, command: StartCommand, used: queue_pb2.UsedRequest | None) -> Existing | Refusal | None:
    if used is None:
        return None
    if used.request_hash != _request_hash(command):
        return refusals.request_id_reused(command.request_id, used.execution_id)
    return Existing(workspace, used.execution_id)


def _refusal(answer: queue_pb2.EnqueueAnswer, item: queue_pb2.EnqueueItem) -> Refusal | DependencyUnavailable:
    match answer.outcome:
        case _Outcome.OUTCOME_UNSPECIFIED:
            return DependencyUnavailable("the dispatcher")
        case _Outcome.REQUEST_ID_REUSED:
            return refusals.request_id_reused(item.start.request_id, answer.existing_execution_id)
        case _Outcome.QUEUE_FULL:
            return refusals.queue_full(item.start.workspace, item.limits.queued_max)
        case _Outcome.WORKSPACE_CLOSED:
            return refusals.key_invalid()
        case _:
            # The dispatcher has logged why, under the id in its message.
            return Refusal("INTERNAL", "this start could not be stored", metadata={"error_id": answer.message})


def _shorter(one: int, other: int) -> int:
    """The shorter of two timeouts; 0 means no timeout."""
    return min(one, other) if one and other else one or other


def _request_hash(command: StartCommand) -> bytes:
    """Equal for two starts that are the same, whatever their trace and the time of the call."""
    same = [*command._replace(labels=dict(command.labels), request_id="")]
    return hashlib.sha256(orjson.dumps(same, option=orjson.OPT_SORT_KEYS)).digest()
