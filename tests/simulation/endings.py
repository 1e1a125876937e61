"""What must hold in a simulated world when everything is over: each execution has ended as it had to, with the effects
that it had to have, and its journal adds up to its rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from services.coordinator.core import events as ev
from services.coordinator.core.projection import execution_row
from services.coordinator.core.recorded_rows import TABLE_COLUMNS, columns_of, value_text
from services.coordinator.core.replaying import Replay
from services.coordinator.core.state import Execution
from services.coordinator.core.values import WorkKey
from services.coordinator.store.codec import unseal
from services.coordinator.store.journal import fold_journal
from tests.simulation.workloads import Sending
from tests.support.memory_journal import JournalRow
from tests.support.steps import done

if TYPE_CHECKING:
    from tests.simulation.world import World

# The deaths of different instances after which work counts as poison.
_DEATHS: Final = 3


class Check(Protocol):
    def __call__(self, holds: bool, promise: str, what: str) -> None: ...


class Fold:
    """The journal of one execution as it was committed, and what it adds up to."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.rows: list[JournalRow] = []
        # How many records of its snapshots were looked at.
        self.records = 0
        self.epoch = 0
        # The kinds of events that messages have led to.
        self.messages: set[tuple[str, str]] = set()
        self.deferred: list[int] = []
        self.attempts: set[tuple[WorkKey, int]] = set()
        self.dead: Counter[WorkKey] = Counter()
        # The runs whose dead letters were resolved.
        self.resolved: set[int] = set()
        # Work that its circuit has not let through.
        self.held_back: set[WorkKey] = set()
        # Its children, each with whether it is cancelled when its parent ends; and those whose cancel was ordered.
        self.children: dict[str, bool] = {}
        self.cancelled_children: set[str] = set()


class Endings:
    def __init__(self, world: World, folds: Mapping[str, Fold], check: Check) -> None:
        self._world = world
        self._folds = folds
        self._check = check

    def check(self) -> None:
        world = self._world
        finished = {(call.execution_id, call.node, call.effect_key) for call in world.ledger.calls if call.is_done}
        counts = Counter((execution_id, node) for execution_id, node, _ in finished)
        for execution_id, number in world.accepted().items():
            start, fold = world.starts[number], self._folds[execution_id]
            execution = fold.execution
            state = str(execution.state)
            is_expected = state in start.workload.ends or self._is_excused(fold, execution_id)
            self._check(is_expected, "S4", f"{execution_id} ({start.version_id}) ended as {state}: {execution.error}")
            if state in start.workload.ends and not self._has_died(fold):
                items = start.workload.items
                wanted = {node: items.get(node, 1) for node in start.workload.effects}
                had = {node: counts[execution_id, node] for node in wanted}
                if any(sending in (Sending.REGRET, Sending.LATE) for _, sending in start.sendings):
                    # A node whose runner was told to stop may have had its effect, and is done again.
                    had = {node: min(count, wanted[node]) for node, count in had.items()}
                missing = sorted(node for node, count in wanted.items() if had[node] != count)
                self._check(not missing, "S4", f"{execution_id} has ended without the effects of {missing}")
        for start in world.starts:
            self._check_repeats(start)
        for execution_id, version_id in world.client.forks.items():
            self._check_fork(execution_id, version_id)
        for execution_id, fold in self._folds.items():
            execution = fold.execution
            replayed = fold_journal(execution_id, execution.definition, [row.events for row in fold.rows])
            self._check(execution_row(replayed) == execution_row(execution), "S6", f"{execution_id} folds differently")
            self._check_replay(execution_id, fold)
            self._check(fold.rows == world.journal.journal[execution_id], "S1", f"rows of {execution_id} have changed")
            for child_id in fold.children:
                self._check_child(fold, child_id)

    def _check_replay(self, execution_id: str, fold: Fold) -> None:
        """The journal adds up to the rows that were stored, all of them."""
        tables = self._world.journal
        replay = Replay(execution_id, fold.execution.definition)
        for row in fold.rows:
            for stored in unseal(row.events):
                assert isinstance(stored.event, ev.Event)
                done(replay.take(stored.seq, stored.event))
        done(replay.finish())
        found = {("executions", 0): tables.executions[execution_id]}
        for table in ("runs", "approvals", "dead_letters"):
            rows = getattr(tables, table)
            found |= {(table, number): row for (id_, number), row in sorted(rows.items()) if id_ == execution_id}
        comparison = replay.comparison()
        for (table, number), stored_row in found.items():
            columns = columns_of(table, [stored_row[column] for column in TABLE_COLUMNS[table]])
            done(comparison.take((table, number), json.loads(value_text(columns))))
        result = done(comparison.result())
        is_same = result.first_difference is None and result.recorded_hash == result.replayed_hash
        self._check(is_same, "S6", f"{execution_id} replays to something else: {result}")
        if result.redecided:
            is_same = result.decided_otherwise is None
            self._check(is_same, "S6", f"{execution_id} is decided otherwise once more: {result}")

    def _check_fork(self, execution_id: str, version_id: str) -> None:
        fold, workload = self._folds[execution_id], self._world.workloads[version_id]
        state = str(fold.execution.state)
        is_expected = state in workload.ends or self._is_excused(fold, execution_id)
        self._check(is_expected, "S4", f"the fork {execution_id} ({version_id}) ended as {state}")
        forks = [each for each in self._folds.values() if each.execution.origin.origin_execution_id]
        ids = [each.execution.origin.request_id for each in forks]
        self._check(len(ids) == len(set(ids)), "S14", f"a request made two forks: {ids}")

    def _check_child(self, parent: Fold, child_id: str) -> None:
        """It may have been given up before it was started."""
        fold = self._folds.get(child_id)
        if fold is None:
            is_over = parent.execution.is_final
            self._check(is_over, "S4", f"the child {child_id} is nowhere, and its parent goes on")
            return
        state, origin = str(fold.execution.state), fold.execution.origin
        is_expected = state in self._world.workloads[origin.version_id].ends or self._is_excused(fold, child_id)
        is_cancelled = state == "CANCELLED" and child_id in parent.cancelled_children
        self._check(is_expected or is_cancelled, "S4", f"the child {child_id} ended as {state}")

    def _is_excused(self, fold: Fold, execution_id: str) -> bool:
        execution = fold.execution
        match str(execution.state):
            case "CANCELLED":
                return execution_id in self._world.client.people.cancelled
            case "TIMEOUT":
                return execution.deadline > 0 and execution.end_time >= execution.deadline
            case "FAILED":
                return self._has_died(fold) or any(map(self._has_died, self._children_of(execution_id)))
            case _:
                return False

    def _children_of(self, execution_id: str) -> list[Fold]:
        return [each for each in self._folds.values() if each.execution.origin.parent_execution_id == execution_id]

    @staticmethod
    def _has_died(fold: Fold) -> bool:
        """Its runners have died with a piece of its work too often."""
        return max(fold.dead.values(), default=0) >= _DEATHS

    def _check_repeats(self, start: Any) -> None:
        ids = [start.execution_id, *start.repeats]
        kept = [each for each in ids if each in self._folds]
        self._check(len(kept) == 1, "S14", f"the start {start.request_id or ids[0]} made {kept}")
        named = {self._world.client.answers[each][1] for each in ids} - {""}
        self._check(named <= set(kept), "S14", f"{start.request_id} was answered with {named}, and made {kept}")
