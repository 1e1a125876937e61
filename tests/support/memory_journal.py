"""The coordinator's tables in memory. They pass the same contract suite as those in PostgreSQL (tests/contract)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from services.chassis.lease.frames import Lease
from services.coordinator.app.ports import Append, Fence, Loaded, RunName, RunStanding, Snapshot, Standing
from services.coordinator.core.projection import (
    APPROVAL_CHANGING,
    APPROVAL_COLUMNS,
    DEAD_LETTER_COLUMNS,
    EXECUTION_CHANGING,
    EXECUTION_COLUMNS,
    EXECUTION_REOPENED,
    RUN_CHANGING,
    RUN_COLUMNS,
    RUN_LEASE,
    RUN_RESULT,
)
from services.coordinator.store.codec import Stored, unseal
from services.coordinator.store.snapshots import FORMAT, whole
from tests.support.memory_queue import Statement, at_once

_FINAL: Final = frozenset({"SUCCESS", "FAILED", "CANCELLED", "TIMEOUT"})
_LIVE: Final = frozenset({"LEASED", "RUNNING"})
# What the migration sets for a run that was granted and no more.
_DEFAULTS: Final[Mapping[str, Any]] = dict.fromkeys(RUN_COLUMNS) | {
    "state": "LEASED",
    "cost_tokens": 0,
    "progress": 0.0,
    "is_taken_back": False,
    "progress_message": "",
    "branch": "",
}


# Nothing else of a dead letter ever changes.
_RESOLUTION: Final = ("resolution", "resolve_time", "reviewer", "notes")


class JournalRow(NamedTuple):
    last_seq: int
    epoch: int
    events: bytes


@dataclass
class JournalTables:
    journal: dict[str, list[JournalRow]] = field(default_factory=dict)
    snapshots: dict[str, list[Snapshot]] = field(default_factory=dict)
    executions: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[RunName, dict[str, Any]] = field(default_factory=dict)
    approvals: dict[RunName, dict[str, Any]] = field(default_factory=dict)
    dead_letters: dict[RunName, dict[str, Any]] = field(default_factory=dict)
    # Counts the statements that have changed something, for whoever looks after each.
    changes: int = 0


class MemoryJournal:
    def __init__(
        self,
        tables: JournalTables,
        run: Statement = at_once,
        *,
        live_instances: Callable[[float], Mapping[str, float]] = lambda granted_again: {},
    ) -> None:
        self._tables = tables
        self._run = run
        self._live_instances = live_instances

    async def append(self, appends: Sequence[Append]) -> Mapping[int, Fence]:
        return await self._run(lambda: self.append_now(appends))

    def append_now(self, appends: Sequence[Append]) -> Mapping[int, Fence]:
        written = [self._append(append) for append in appends]
        return {place: self._fence(appends[place]) for place, is_written in enumerate(written) if not is_written}

    def _fence(self, append: Append) -> Fence:
        row = self._tables.executions.get(append.execution_id)
        return Fence(0, 0) if row is None else Fence(row["epoch"], row["last_seq"])

    def _append(self, append: Append) -> bool:
        tables, id_ = self._tables, append.execution_id
        row = tables.executions.get(id_)
        if append.from_seq == 0:
            if row is not None:
                return False
            tables.executions[id_] = _named((*EXECUTION_COLUMNS, "summary"), append.execution) | {
                "imported_execution_id": ""
            }
        else:
            if row is None or (row["epoch"], row["last_seq"]) != (append.epoch, append.from_seq):
                return False
            changing = EXECUTION_REOPENED if append.is_reopened else EXECUTION_CHANGING
            row |= _named((*changing, "summary"), append.execution)
        tables.changes += 1
        tables.journal.setdefault(id_, []).append(JournalRow(append.last_seq, append.epoch, append.entry))
        if append.snapshot is not None:
            tables.snapshots.setdefault(id_, []).append(append.snapshot)
        for columns, runs in (((*RUN_LEASE, "effect_key"), append.leased), ((*RUN_COLUMNS, "effect_key"), append.made)):
            for values in runs:
                made = _named(columns, values)
                tables.runs[id_, made["number"]] = {**_DEFAULTS, **made}
        for changed, runs in ((RUN_RESULT, append.ended), (RUN_CHANGING, append.moved)):
            for values in runs:
                new = _named(changed, values)
                tables.runs[id_, new["number"]] |= new
        for values in append.approvals:
            approval = _named(APPROVAL_COLUMNS, values)
            known = tables.approvals.setdefault((id_, approval["number"]), approval)
            known |= {name: approval[name] for name in APPROVAL_CHANGING}
        for values in append.dead_letters:
            letter = _named(DEAD_LETTER_COLUMNS, values)
            known = tables.dead_letters.setdefault((id_, letter["number"]), letter)
            known |= {name: letter[name] for name in _RESOLUTION}
        return True

    async def load(
        self, leases: Sequence[Lease], *, is_patient: bool, drops_snapshots: bool = False
    ) -> Sequence[Loaded]:
        return await self._run(lambda: self.load_now(leases, drops_snapshots=drops_snapshots))

    def load_now(self, leases: Sequence[Lease], *, drops_snapshots: bool = False) -> Sequence[Loaded]:
        return [self._load(lease, drops_snapshots) for lease in leases]

    def _load(self, lease: Lease, drops_snapshots: bool) -> Loaded:
        row = self._tables.executions.get(lease.lease_id)
        if row is None:
            return Loaded(0, ())
        self._tables.changes += 1
        row["epoch"] = max(row["epoch"], lease.epoch)
        if row["epoch"] != lease.epoch:
            return Loaded(row["epoch"], ())
        stored = self._tables.snapshots.get(lease.lease_id, [])
        if drops_snapshots:
            stored[:] = [each for each in stored if each.format != FORMAT]
        records = whole([each for each in stored if each.format == FORMAT])
        last_seq = records[-1].last_seq if records else 0
        rows = self._tables.journal.get(lease.lease_id, ())
        return Loaded(lease.epoch, [row.events for row in rows if row.last_seq > last_seq], records)

    async def live_instances(self, granted_again: float) -> Mapping[str, float]:
        return await self._run(lambda: self._live_instances(granted_again))


class MemoryReads:
    """What a coordinator reads of executions that it may not own."""

    def __init__(self, tables: JournalTables, run: Statement = at_once) -> None:
        self._tables = tables
        self._run = run

    async def executions(self, execution_ids: Sequence[str]) -> list[dict[str, Any]]:
        rows = self._tables.executions
        return await self._run(lambda: [dict(rows[each]) for each in execution_ids if each in rows])

    async def events(self, execution_id: str, *, after_seq: int, limit: int) -> list[Stored]:
        def work() -> list[Stored]:
            appends = [each for each in self._tables.journal.get(execution_id, ()) if each.last_seq > after_seq]
            return [stored for append in appends[:limit] for stored in unseal(append.events)]

        return await self._run(work)

    async def snapshot_records(self, execution_id: str, as_of_seq: int) -> Sequence[Snapshot]:
        stored = self._tables.snapshots.get(execution_id, ())
        early = [each for each in stored if each.format == FORMAT and each.last_seq <= as_of_seq]
        return await self._run(lambda: whole(early))

    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]:
        def work() -> Mapping[str, Standing]:
            rows = self._tables.executions
            found = {each: rows[each] for each in execution_ids if each in rows}
            return {
                id_: Standing(row["workspace"], row["last_seq"], row["state"] in _FINAL) for id_, row in found.items()
            }

        return await self._run(work)

    async def run_standings(self, names: Collection[RunName]) -> Mapping[RunName, RunStanding]:
        def work() -> Mapping[RunName, RunStanding]:
            rows = self._tables.runs
            found = {each: rows[each] for each in names if each in rows}
            return {
                name: RunStanding(row["epoch"], row["instance_id"], row["state"] in _LIVE, row["is_taken_back"])
                for name, row in found.items()
            }

        return await self._run(work)


def _named(columns: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(columns, values, strict=True))
