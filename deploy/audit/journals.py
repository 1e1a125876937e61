"""The promises that one journal shows, judged from its events alone.

Nothing here asks the core's rules or its state: a work is followed by the events that name it, so that a mistake in
the rules does not excuse itself.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple, TypeAlias

from deploy.audit.findings import Findings
from deploy.audit.joins import Joins
from services.coordinator.core import events as ev
from services.coordinator.core.definition import OUTPUT_NODE, Definition
from services.coordinator.store.codec import Stored

# After them the runner's lease on the run is over.
LeaseEnd: TypeAlias = ev.RunSucceeded | ev.RunFailed | ev.RunLost | ev.RunReleased | ev.ControlRendered


class AuditedWork(NamedTuple):
    node: str
    iteration: int
    generation: int


class AuditedLease(NamedTuple):
    number: int
    instance_id: str


class AuditedGrant(NamedTuple):
    """Of the execution to a coordinator."""

    epoch: int
    holder: str


class JournalJudge:
    """One journal, event by event, in order. `live` are the runners' instances that have never ended."""

    def __init__(
        self, execution_id: str, definition: Definition, live: Container[str], findings: Findings
    ) -> None:
        self._id = execution_id
        self._live_instances = live
        self._findings = findings
        self._joins = Joins(definition)
        self._work_of: dict[int, AuditedWork] = {}
        self._live: dict[AuditedWork, AuditedLease] = {}
        # The runs that were live at a take-over and have not ended since.
        self._adopted: set[int] = set()
        self._attempts: dict[AuditedWork, set[int]] = {}
        self._decided: set[AuditedWork] = set()
        self._wakes: dict[int, int] = {}
        self._retries: dict[AuditedWork, int] = {}
        self._is_final = False
        self.grants: list[AuditedGrant] = []

    def judge(self, records: Sequence[Stored]) -> None:
        check, last_epoch = self._findings.check, 0
        for place, record in enumerate(records, 1):
            where = f"{self._id}/{place}"
            if record.seq != place:
                # What follows is not what followed: every other promise would look broken, too.
                self._findings.broke("S1", f"{where} says seq {record.seq}")
                return
            self._findings.saw("S1")
            check("S2", record.epoch >= last_epoch, f"{where} has epoch {record.epoch} after {last_epoch}")
            last_epoch = record.epoch
            if self._is_final:
                self._findings.broke("S7", f"{where} follows the end of the execution")
            if not isinstance(record.event, ev.Event):
                break  # of a version to come: what follows is not for us
            self._follow(record.event, where)
            check(
                "S2", record.epoch == self.grants[-1].epoch, f"{where}: epoch {record.epoch} was not granted"
            )
        if self._is_final:
            self._findings.saw("S7")

    def _follow(self, event: ev.Event, where: str) -> None:
        match event:
            case ev.ExecutionStarted() | ev.ExecutionAdopted():
                self._granted(AuditedGrant(event.epoch, event.holder), where)
            case ev.RunLeased():
                self._leased(event, where)
            case ev.RunSucceeded() | ev.RunFailed() | ev.RunLost() | ev.RunReleased() | ev.ControlRendered():
                self._lease_ended(event, where)
            case ev.RunCancelled():
                self._free(event.number)
            case ev.BackoffEnded():
                work = AuditedWork(event.node, event.iteration, event.generation)
                self._due(self._retries.pop(work, 0), event.time, f"{where}: backoff of {work.node}")
            case ev.JoinPassed():
                self._passed(event, where)
                self._outcome(event.number, where)
            case ev.SleepStarted():
                self._passed(event, where)
                self._wakes[event.number] = event.wake_time
            case ev.SleepEnded():
                self._due(self._wakes.pop(event.number, 0), event.time, f"{where}: sleep {event.number}")
                self._outcome(event.number, where)
            case ev.NodesSkipped():
                self._joins.skipped(event.nodes)
                for number, node in enumerate(event.nodes, event.first_number):
                    self._work_of[number] = AuditedWork(node, 0, 1)
            case ev.NodesBlocked():
                self._joins.blocked(event.nodes)
            case ev.ExecutionFinished():
                self._is_final = True
            case _:
                pass

    def _granted(self, grant: AuditedGrant, where: str) -> None:
        """Two holders under one epoch could both write: worse than an epoch that does not rise."""
        check, before = self._findings.check, self.grants[-1] if self.grants else None
        is_shared = before is not None and before.epoch == grant.epoch and before.holder != grant.holder
        check("S11", not is_shared, f"{where}: {before} and {grant} hold it")
        rises = is_shared or before is None or before.epoch < grant.epoch
        check("S3", rises, f"{where}: {grant} was granted after {before}")
        self.grants.append(grant)
        if before is not None:
            self._adopted = {lease.number for lease in self._live.values()}
            self._findings.saw("S26", len(self._adopted))

    def _leased(self, event: ev.RunLeased, where: str) -> None:
        work = AuditedWork(event.node, event.iteration, event.generation)
        self._work_of[event.number] = work
        check, before = self._findings.check, self._live.get(work)
        if before is not None and before.number in self._adopted:
            self._findings.broke("S26", f"{where}: {work.node} was granted again though {before} was adopted")
        else:
            check("S11", before is None, f"{where}: {work.node} was leased while {before} held it")
        attempts = self._attempts.setdefault(work, set())
        check("S9", event.attempt not in attempts, f"{where}: attempt {event.attempt} of {work.node} again")
        attempts.add(event.attempt)
        check("S8", work not in self._decided, f"{where}: {work.node} had its outcome already")
        self._live[work] = AuditedLease(event.number, event.instance_id)
        self._starts(work.node, where)

    def _lease_ended(self, event: LeaseEnd, where: str) -> None:
        number = event.number
        work = self._work_of[number]
        lease = self._free(number)
        if lease is None:
            self._findings.broke("S8", f"{where}: {type(event).__name__} of run {number}, which was over")
            return
        match event:
            case ev.RunSucceeded():
                self._outcome(number, where, event.branch)
            case ev.RunLost():
                lives = lease.instance_id in self._live_instances
                self._findings.check("S26", not lives, f"{where}: run {number} was lost while {lease} lives")
                if event.reason is not None:
                    self._failed(work, where)
            case ev.RunFailed():
                if event.reason is not None:
                    self._failed(work, where)
                else:
                    self._retries[work] = event.retry_time
            case _:
                pass

    def _free(self, number: int) -> AuditedLease | None:
        work = self._work_of[number]
        self._adopted.discard(number)
        lease = self._live.get(work)
        if lease is None or lease.number != number:
            return None
        return self._live.pop(work)

    def _passed(self, event: ev.JoinPassed | ev.SleepStarted, where: str) -> None:
        self._work_of[event.number] = AuditedWork(event.node, event.iteration, event.generation)
        self._starts(event.node, where)

    def _starts(self, node: str, where: str) -> None:
        if node != OUTPUT_NODE and self._joins.has_sources(node):
            self._findings.check("S10", self._joins.holds(node), f"{where}: {self._joins.shown(node)}")

    def _due(self, due: int, time: int, where: str) -> None:
        self._findings.check("S19", 0 < due <= time, where)

    def _outcome(self, number: int, where: str, branch: str = "") -> None:
        work = self._work_of[number]
        self._decide(work, where)
        self._joins.succeeded(work.node, branch)

    def _failed(self, work: AuditedWork, where: str) -> None:
        self._decide(work, where)
        self._joins.failed(work.node)

    def _decide(self, work: AuditedWork, where: str) -> None:
        self._findings.check("S8", work not in self._decided, f"{where}: {work.node} has two outcomes")
        self._decided.add(work)
