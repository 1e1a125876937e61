"""`python -m benchmarks.long`: how the cost of one execution depends on the number of its events.

The execution is a graph of 2,000 nodes with one loop of up to 10,000 items in it, and one turn of the loop or one node
after the other. Its journal is written as a coordinator writes it: decided, encoded and sealed in one append for each
report, with its snapshots. It prints one JSON line for each size:

    take_over_ms       from the stored rows to the state, with the snapshot
    fold_ms            the same without it
    snapshot_mb        all records of the snapshot
    event_us           CPU for each of the last 25,000 events: deciding, the bytes and rows, and their snapshots
    longest_ms         the longest append: what the other executions of the coordinator wait for

The figures are CPU of this thread, without PostgreSQL. Each is the best of some rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from time import thread_time
from typing import Any

from benchmarks.micro_core import EXECUTION_ID, HASH, INSTANCE, NOW, RUNNER
from services.coordinator.app.ports import Loaded, Snapshot
from services.coordinator.config import CoordinatorSettings
from services.coordinator.core.commands import Assign, AssignedRun, ReportSuccess, Start
from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event
from services.coordinator.core.handlers import handle
from services.coordinator.core.projection import execution_change, run_change, run_row
from services.coordinator.core.state import Execution
from services.coordinator.core.values import Origin
from services.coordinator.store.codec import encode_event, seal
from services.coordinator.store.journal import take_up
from services.coordinator.store.snapshots import JournalSnapshotLog, whole

SIZES = (1_000, 10_000, 100_000)
EVENTS_EACH = CoordinatorSettings.snapshot_events
# A collection of garbage takes 10 to 30 ms and comes once in as many events.
EVENTS_MEASURED = 25_000
ROUNDS = 2
NODES = 2_000
OUTPUT = b'{"id":4711}'


def graph() -> Definition:
    """Loops of 10,000 items beside a chain. The chain goes on when the loops are over."""
    loop = {"items": list(range(10_000)), "maxParallel": 10, "body": {"module": "noop@1"}}
    nodes: list[dict[str, Any]] = [
        {"id": f"loop{number}", "module": "for_each@1", "config": loop} for number in range(6)
    ]
    nodes += [{"id": f"step{number}", "module": "noop@1", "timeout": "30s"} for number in range(NODES - len(nodes))]
    edges = [{"from": nodes[number]["id"], "to": nodes[number + 1]["id"]} for number in range(len(nodes) - 1)]
    return compile_definition({"name": "long", "nodes": nodes, "edges": edges})


class LongJournal:
    """The rows that a coordinator stores of one execution."""

    def __init__(self, definition: Definition) -> None:
        self.execution = Execution(EXECUTION_ID, definition)
        self.rows: list[tuple[int, bytes]] = []
        self.records: list[Snapshot] = []
        self.log: JournalSnapshotLog | None = None
        self.event_times: list[tuple[int, float]] = []

    def grow(self, size: int) -> None:
        execution = self.execution
        self._append(Start(1, "c", Origin("default", "long", 1, "long-v1"), 1))
        while execution.seq < size and not execution.is_final:
            if execution.ready:
                self._append(Assign([AssignedRun(work, INSTANCE, RUNNER) for work in execution.ready]))
            for run in list(execution.live.values()):
                self._append(
                    ReportSuccess(
                        run.number, run.epoch, OUTPUT, start_time=NOW, end_time=NOW, inputs_hash=HASH, config_hash=HASH
                    )
                )

    def _append(self, command: Any) -> None:
        execution, first_seq = self.execution, self.execution.seq + 1
        began = thread_time()
        events = handle(execution, command, NOW).events
        entry = seal(EXECUTION_ID, first_seq, 1, NOW, [encode_event(event) for event in events])
        for event in events:
            if number := getattr(event, "run", 0):
                run_row(execution, execution.runs[number - 1])
                run_change(execution, execution.runs[number - 1])
        execution_change(execution)
        self._add_snapshot(events)
        self.event_times.append((len(events), thread_time() - began))
        self.rows.append((execution.seq, entry))

    def _add_snapshot(self, events: list[Event]) -> None:
        """Write a snapshot when one is due, as the commit loop does."""
        execution = self.execution
        if self.log is not None:
            self.log.note(execution, events)
        if execution.seq < EVENTS_EACH:
            return
        if self.log is None:
            self.log = JournalSnapshotLog(execution, EVENTS_EACH)
        if record := self.log.due(execution):
            self.records.append(record)

    def loaded(self) -> Loaded:
        """What a take-over reads."""
        records = whole(self.records)
        last_seq = records[-1].last_seq if records else 0
        return Loaded(1, [entry for seq, entry in self.rows if seq > last_seq], records)

    def all_events(self) -> Loaded:
        return Loaded(1, [entry for _, entry in self.rows])


def best_ms(measured: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = thread_time()
        measured()
        times.append(thread_time() - began)
    return round(1_000 * min(times), 1)


def measure(definition: Definition, size: int) -> dict[str, float]:
    journals = []
    for _ in range(ROUNDS):
        journal = LongJournal(definition)
        # The tail is nearly as long as it can be.
        journal.grow(size + EVENTS_EACH - 50)
        journals.append(journal)
    journal = journals[0]
    found, whole_journal = journal.loaded(), journal.all_events()
    return {
        "events": journal.execution.seq,
        "take_over_ms": best_ms(lambda: take_up(EXECUTION_ID, definition, found, EVENTS_EACH)),
        "tail_appends": len(found.events),
        "fold_ms": best_ms(lambda: take_up(EXECUTION_ID, definition, whole_journal, EVENTS_EACH)),
        "snapshot_mb": round(sum(len(each.data) for each in journal.records) / 1e6, 2),
        "event_us": round(min(_event_us(each) for each in journals), 1),
        "longest_ms": round(1_000 * min(max(time for _, time in each.event_times) for each in journals), 1),
    }


def _event_us(journal: LongJournal) -> float:
    """Of all events if there are not so many."""
    events, seconds = 0, 0.0
    for count, time in reversed(journal.event_times):
        events += count
        seconds += time
        if events >= EVENTS_MEASURED:
            break
    return 1e6 * seconds / events


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures one execution of many events.")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    definition = graph()
    # As in the services (services/chassis/process/service.py).
    gc.set_threshold(50_000, 20, 50)
    for size in parser.parse_args().sizes.split(","):
        print(json.dumps(measure(definition, int(size))), flush=True)


if __name__ == "__main__":
    main()
