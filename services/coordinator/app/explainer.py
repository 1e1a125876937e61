"""Explains an execution: what it waits for now, and where its time went (core/explaining.py).

The journal tells nearly all of it. The runners that are attached here tell why ready work has no runner, and the rows
of their instances tell which of them are heard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from services.chassis.process.clock import Clock
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.ports import Journal, Row
from services.coordinator.core.explaining import Blocker, Cause, Stopwatch, blockers
from services.coordinator.core.state import Execution, Work
from services.coordinator.core.values import Span

_BLOCKERS_MAX: Final = 100
_WAITS: Final[Mapping[Cause, str]] = {
    Cause.SLEEPING: "sleeps",
    Cause.BACKOFF: "is tried again",
    Cause.WAITING_FOR_SIGNAL: "waits for a signal",
    Cause.WAITING_FOR_APPROVAL: "waits until people have decided",
    Cause.WAITING_FOR_CHILD: "waits for the execution that it has started",
    Cause.WAITING_FOR_COMPLETION: "waits until somebody else has finished its work",
    Cause.WAITING_FOR_RESOLUTION: "has failed for good, and waits until a person has resolved its dead letter",
}


class Explained(NamedTuple):
    execution_id: str
    blockers: Sequence[tuple[Blocker, str]]
    """Each with a sentence about it."""
    spent: Mapping[Cause, Span]


class Explainer:
    def __init__(
        self,
        walks: JournalWalks,
        journal: Journal,
        why_no_runner: Callable[[str, Work], str],
        granted_again: float,
        clock: Clock,
    ) -> None:
        """`why_no_runner` takes a workspace and ready work. `granted_again`: after this time without a beat, a runner
        has lost its work."""
        self._walks = walks
        self._journal = journal
        self._why_no_runner = why_no_runner
        self._granted_again = granted_again
        self._clock = clock

    async def explain(self, row: Row) -> Explained:
        stopwatch = Stopwatch()
        execution = None
        async for step in self._walks.walk(row):
            execution = step.execution
            stopwatch.before(execution, step.event)
        if execution is None:
            return Explained(row["execution_id"], (), {})
        stopwatch.reach(execution, self._clock.epoch_ns() // 1_000)
        heard = await self._journal.live_instances(self._granted_again)
        live = {instance_id for instance_id, silent_seconds in heard.items() if not silent_seconds}
        found = itertools.islice(blockers(execution, stopwatch.since, live), _BLOCKERS_MAX)
        return Explained(
            execution.execution_id, [(each, self._sentence(execution, each)) for each in found], stopwatch.spent
        )

    def _sentence(self, execution: Execution, blocker: Blocker) -> str:
        work, run = blocker.work, blocker.run
        if work is None:
            return _pause(execution)
        name = _name(work)
        error = run.error if run is not None else None
        match blocker.cause:
            case Cause.RUNNING if run is not None:
                progress = f", {run.progress:.0%} done" if run.progress else ""
                return f"{name} is being done by the runner {run.runner}{progress}"
            case Cause.LEASE_IN_DOUBT if run is not None:
                return f"the runner {run.runner} has {name} and is silent; when its lease ends, another one gets it"
            case Cause.WAITING_FOR_RUNNER:
                return f"{name} is ready, and {self._why_no_runner(execution.origin.workspace, work)}"
            case Cause.BACKOFF if error is not None:
                return f"{name} failed and is tried again: {error.type}: {error.message}"
            case Cause.CIRCUIT_OPEN:
                return f"{name} waits, because the circuit of {execution.held_back[work.key].target} is open"
            case Cause.WAITING_FOR_RESOLUTION if error is not None:
                return f"{name} failed for good and waits for a person: {error.type}: {error.message}"
            case _:
                return f"{name} {_WAITS[blocker.cause]}"


def _name(work: Work) -> str:
    """The node. An item of a loop also has its iteration, and how far the loop has come."""
    loop = work.loop
    if loop is None:
        return work.node.id
    return f"{work.node.id}[{work.key.iteration}] ({loop.begun - len(loop.going)} of {loop.count} done)"


def _pause(execution: Execution) -> str:
    paused = execution.paused_by
    assert paused is not None
    return f"{paused.caller} has paused it{f': {paused.reason}' if paused.reason else ''}"
