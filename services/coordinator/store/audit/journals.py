"""The promises that one journal shows, judged from its events alone.

Nothing here asks the core's rules or its state: a work is followed by the events that name it, so that a mistake in
the rules does not excuse itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.coordinator.core import events as ev
from services.coordinator.core.definition import OUTPUT_NODE, Definition, Join
from services.coordinator.store.audit.findings import Findings
from services.coordinator.store.codec import Stored


class Work(NamedTuple):
    node: str
    iteration: int
    generation: int


class JournalJudge:
    """One journal, event by event, in order."""

    def __init__(self, execution_id: str, definition: Definition, findings: Findings) -> None:
        self._id = execution_id
        self._definition = definition
        self._findings = findings
        self._work_of: dict[int, Work] = {}
        self._live: dict[Work, int] = {}
        self._attempts: dict[Work, set[int]] = {}
        self._succeeded: set[Work] = set()
        self._settled: set[str] = set()
        self._wakes: dict[int, int] = {}
        self._retries: dict[Work, int] = {}
        self._is_final = False
        self._is_adopted = False
        self._epochs: list[int] = []
        self._sources = _sources(definition)

    def judge(self, records: Sequence[Stored]) -> None:
        check, last_epoch = self._findings.check, 0
        for place, record in enumerate(records, 1):
            where = f"{self._id}/{place}"
            check("S1", record.seq == place, f"{where} says seq {record.seq}")
            check("S2", record.epoch >= last_epoch, f"{where} has epoch {record.epoch} after {last_epoch}")
            last_epoch = record.epoch
            if self._is_final:
                self._findings.broke("S7", f"{where} follows the end of the execution")
            if not isinstance(record.event, ev.Event):
                break  # of a version to come: what follows is not for us
            self._follow(record.event, where)
        if self._is_final:
            self._findings.saw("S7")
        grants = zip(self._epochs, self._epochs[1:], strict=False)
        self._findings.saw("S3", len(self._epochs))
        for before, after in grants:
            if after <= before:
                self._findings.broke("S3", f"{self._id}: epoch {after} was granted after {before}")

    def _follow(self, event: ev.Event, where: str) -> None:
        match event:
            case ev.ExecutionStarted() | ev.ExecutionAdopted():
                self._epochs.append(event.epoch)
                self._is_adopted = isinstance(event, ev.ExecutionAdopted)
            case ev.RunLeased():
                self._leased(event, where)
            case ev.RunSucceeded():
                self._ended(event.number)
                self._outcome(event.number, where)
            case ev.RunFailed():
                work = self._ended(event.number)
                if event.reason is not None:
                    self._settled.add(work.node)
                elif event.retry_time:
                    self._retries[work] = event.retry_time
            case ev.RunLost():
                work = self._ended(event.number)
                if event.reason is not None:
                    self._settled.add(work.node)
            case ev.RunReleased() | ev.RunCancelled() | ev.ControlRendered():
                self._ended(event.number)
            case ev.BackoffEnded():
                work = Work(event.node, event.iteration, event.generation)
                due = self._retries.pop(work, 0)
                self._findings.check(
                    "S19", bool(due) and event.time >= due, f"{where}: backoff of {work.node}"
                )
            case ev.JoinPassed():
                self._passed(event, where)
                self._outcome(event.number, where)
            case ev.SleepStarted():
                self._passed(event, where)
                self._wakes[event.number] = event.wake_time
            case ev.SleepEnded():
                due = self._wakes.pop(event.number, 0)
                self._findings.check("S19", bool(due) and event.time >= due, f"{where}: sleep {event.number}")
                self._outcome(event.number, where)
            case ev.NodesSkipped():
                self._settled.update(event.nodes)
                for number, node in enumerate(event.nodes, event.first_number):
                    self._work_of[number] = Work(node, 0, 1)
            case ev.ExecutionFinished():
                self._is_final = True
            case _:
                pass

    def _leased(self, event: ev.RunLeased, where: str) -> None:
        work = Work(event.node, event.iteration, event.generation)
        self._work_of[event.number] = work
        check = self._findings.check
        is_free = work not in self._live
        check("S11", is_free, f"{where}: {work.node} was leased while run {self._live.get(work)} held it")
        if self._is_adopted:
            check("S26", is_free, f"{where}: {work.node} was granted again though it was live")
        attempts = self._attempts.setdefault(work, set())
        check("S9", event.attempt not in attempts, f"{where}: attempt {event.attempt} of {work.node} again")
        attempts.add(event.attempt)
        check("S8", work not in self._succeeded, f"{where}: {work.node} had succeeded already")
        self._live[work] = event.number
        self._joins(work.node, where)

    def _passed(self, event: ev.JoinPassed | ev.SleepStarted, where: str) -> None:
        self._work_of[event.number] = Work(event.node, event.iteration, event.generation)
        self._joins(event.node, where)

    def _joins(self, node: str, where: str) -> None:
        """Only what must have been: that its sources had settled before it started."""
        if node == OUTPUT_NODE:
            return
        sources = self._sources[node]
        if not sources:
            return
        index = self._definition.index[node]
        settled = sources & self._settled
        wants_all = self._definition.nodes[index].join is Join.ALL
        holds = settled == sources if wants_all else bool(settled)
        self._findings.check("S10", holds, f"{where}: {node} started before {sorted(sources - settled)}")

    def _ended(self, number: int) -> Work:
        work = self._work_of[number]
        if self._live.get(work) == number:
            del self._live[work]
        return work

    def _outcome(self, number: int, where: str) -> None:
        work = self._work_of[number]
        self._findings.check("S8", work not in self._succeeded, f"{where}: {work.node} succeeded twice")
        self._succeeded.add(work)
        self._settled.add(work.node)


def _sources(definition: Definition) -> dict[str, set[str]]:
    sources: dict[str, set[str]] = {node.id: set() for node in definition.nodes}
    for node in definition.nodes:
        for edge in node.edges:
            sources[definition.nodes[edge.target].id].add(node.id)
    return sources
