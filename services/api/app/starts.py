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
from services.api.app.checking.children import Checkers
from services.api.app.identifiers import Identifiers
from services.api.app.ports import Enqueuer, ExecutionQueue
from services.api.app.startables import VIOLATIONS_MAX, Startable, Startables
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point

INPUT_BYTES_MAX: Final = 256 * 1024


class ForkOf(NamedTuple):
    """What makes a start a fork, as the caller has asked for it."""

    execution_id: str
    from_node: str
    # 0: that of the origin.
    version: int
    # None: that of the origin.
    input: Mapping[str, Any] | None


class StartCommand(NamedTuple):
    workflow: str
    version: int
    input: Mapping[str, Any]
    request_id: str
    labels: Mapping[str, str]
    priority: int
    # The timeout in nanoseconds. 0: none.
    timeout: int
    # None: it is no fork. All else but the request id follows from it, and from its origin.
    fork: ForkOf | None = None


class PreparedStart(NamedTuple):
    """A start that may be queued. `rpc/translate.py` makes its EnqueueItem."""

    command: StartCommand
    startable: Startable
    workspace: str
    execution_id: str
    # The input as JSON.
    content: bytes
    # Both times are in nanoseconds since 1970. A deadline of 0 is none.
    create_ns: int
    deadline_ns: int

    @property
    def request_hash(self) -> bytes:
        return _request_hash(self.command) if self.command.request_id else b""


class Starter:
    def __init__(
        self,
        startables: Startables,
        enqueuer: Enqueuer,
        queue: ExecutionQueue,
        checker: Checkers,
        identifiers: Identifiers,
        clock: Clock,
        *,
        enqueue_seconds: float,
    ) -> None:
        self._startables = startables
        self._enqueuer = enqueuer
        self._queue = queue
        self._checker = checker
        self._identifiers = identifiers
        self._clock = clock
        self._enqueue_seconds = enqueue_seconds

    async def prepare(
        self, workspace: str, command: StartCommand, violations_max: int = VIOLATIONS_MAX
    ) -> PreparedStart:
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
        timeout = _shorter(command.timeout, startable.timeout * 1_000)
        deadline = now + timeout if timeout else 0
        return PreparedStart(command, startable, workspace, self._identifiers.mint(), content, now, deadline)

    async def recall(self, workspace: str, commands: Sequence[StartCommand]) -> Sequence[str | Refusal | None]:
        """The execution that each request_id has started; None where it was not used before."""
        known = await self._queue.requests(workspace, sorted({command.request_id for command in commands}))
        found: list[str | Refusal | None] = []
        for command in commands:
            used = known.get(command.request_id)
            if used is not None and used.request_hash != _request_hash(command):
                found.append(refusals.request_id_reused(command.request_id, used.execution_id))
            else:
                found.append(used.execution_id if used else None)
        return found

    def submit(self, start: PreparedStart, item: Any) -> Coroutine[Any, Any, str]:
        """Send the start at once, as an EnqueueItem. It is durable when the answer comes: its id, or that of an earlier
        start with the same request_id."""
        crash_point("api.start.before_enqueue")
        return self._settled(start, self._enqueuer.enqueue(item, self._enqueue_seconds))

    async def _settled(self, start: PreparedStart, answering: Awaitable[str | Refusal | DependencyUnavailable]) -> str:
        answer = await answering
        crash_point("api.start.after_enqueue")
        if isinstance(answer, str):
            return answer
        if isinstance(answer, Refusal) and answer.reason == "KEY_INVALID":
            # The workspace was closed meanwhile.
            self._startables.forget(start.workspace)
        raise answer


def _shorter(one: int, other: int) -> int:
    """The shorter of two timeouts; 0 means no timeout."""
    return min(one, other) if one and other else one or other


def _request_hash(command: StartCommand) -> bytes:
    """Equal for two starts that are the same, whatever their trace and the time of the call."""
    same: list[Any] = [*command._replace(labels=dict(command.labels), request_id="")][:-1]
    if command.fork is not None:
        # The origin may have another newest event by now.
        same = ["fork", *command.fork]
    return hashlib.sha256(orjson.dumps(same, option=orjson.OPT_SORT_KEYS)).digest()
