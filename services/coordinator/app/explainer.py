"""Explains an execution: what it waits for now, and where its time went (core/explaining.py).

The journal tells nearly all of it. The runners that are attached here tell why ready work has no runner, and the rows
of their instances tell which of them are heard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from services.chassis.process.clock import Clock
from services.coordinator.app.blocker_texts import BlockerText, text_of
from services.coordinator.app.journal_walks import JournalWalks
from services.coordinator.app.ports import Journal, Row
from services.coordinator.core.explaining import (
    Blocker,
    Cause,
    KeptSignals,
    Stopwatch,
    behind_circuit,
    blockers,
    kept_signals,
)
from services.coordinator.core.state import Work
from services.coordinator.core.values import Instant, Span

_BLOCKERS_MAX: Final = 100
_SIGNAL_NAMES_MAX: Final = 100


class Explained(NamedTuple):
    execution_id: str
    blockers: Sequence[tuple[Blocker, BlockerText]]
    spent: Mapping[Cause, Span]
    kept: Sequence[KeptSignals]


class Explainer:
    def __init__(
        self,
        walks: JournalWalks,
        journal: Journal,
        why_no_runner: Callable[[str, Work], str],
        probe_time: Callable[[tuple[str, str]], Instant],
        granted_again: float,
        clock: Clock,
    ) -> None:
        """`why_no_runner` takes a workspace and ready work. `probe_time` takes a workspace and a target; 0 unless
        its circuit is open. `granted_again`: after this time without a beat, a runner has lost its work."""
        self._walks = walks
        self._journal = journal
        self._why_no_runner = why_no_runner
        self._probe_time = probe_time
        self._granted_again = granted_again
        self._clock = clock

    async def explain(self, row: Row, queued_time: Instant = 0) -> Explained:
        """`queued_time`: since then it waits in the queue once more, and the time after that is not told."""
        stopwatch = Stopwatch()
        execution = None
        async for step in self._walks.walk(row):
            execution = step.execution
            stopwatch.before(execution, step.event)
        if execution is None:
            return Explained(row["execution_id"], (), {}, ())
        now = self._clock.epoch_ns() // 1_000
        stopwatch.reach(execution, queued_time or now)
        heard = await self._journal.live_instances(self._granted_again)
        live = {instance_id for instance_id, silent_seconds in heard.items() if not silent_seconds}
        found = itertools.islice(blockers(execution, stopwatch.since, live), _BLOCKERS_MAX)
        workspace = execution.origin.workspace
        dated = [
            behind_circuit(each, self._probe_time((workspace, each.target)), now) if each.target else each
            for each in found
        ]
        return Explained(
            execution.execution_id,
            [(each, text_of(execution, each, self._why_no_runner)) for each in dated],
            stopwatch.spent,
            list(itertools.islice(kept_signals(execution, stopwatch.came), _SIGNAL_NAMES_MAX)),
        )
