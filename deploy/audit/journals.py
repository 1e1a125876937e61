"""The promises that one journal can show, judged by its events alone.

Nothing here uses the rules or the state of the core. Each work is followed by the events that name it, so a mistake in
the rules does not hide itself.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final, NamedTuple, TypeAlias

from deploy.audit.findings import Findings
from deploy.audit.joins import End, Joins
from services.coordinator.core import events as ev
from services.coordinator.core.definition import OUTPUT_NODE, Definition
from services.coordinator.core.values import DeadLetterResolution, WorkKey
from services.coordinator.store.codec import Stored

# These events end a runner's lease on a run.
LeaseEnd: TypeAlias = (
    ev.RunSucceeded | ev.RunFailed | ev.RunLost | ev.RunReleased | ev.ControlRendered | ev.WorkRendered
)


_HELD_BY_PAUSE: Final = (ev.RunLeased, ev.LoopStarted, ev.ChildRequested, ev.BackoffEnded)


def waits_for_resume(event: ev.Event) -> bool:
    """It begins something, or a timer is due: nothing of this kind may happen during a pause. A node that has failed
    may begin to wait for a person, because that follows from its failure."""
    match event:
        case ev.WaitStarted():
            return event.kind is not ev.WaitKind.PERSON
        case ev.WaitEnded():
            return event.outcome is ev.WaitOutcome.EXPIRED
        case _:
            return isinstance(event, _HELD_BY_PAUSE)


class AuditedLease(NamedTuple):
    number: int
    instance_id: str
    # It may be granted elsewhere while its runner is only out of reach.
    is_idempotent: bool


class AuditedGrant(NamedTuple):
    """A grant of the execution to a coordinator."""

    epoch: int
    holder: str


class JournalJudge:
    """Judges one journal, event by event. `live` are the instances of runners that have not ended."""

    def __init__(self, execution_id: str, definition: Definition, live: Container[str], findings: Findings) -> None:
        self._id = execution_id
        self._live_instances = live
        self._findings = findings
        self._joins = Joins(definition)
        self._definition = definition
        self._live: dict[WorkKey, AuditedLease] = {}
        # The runs that were live at a take-over and have not ended since.
        self._adopted: set[int] = set()
        self._attempts: dict[WorkKey, set[int]] = {}
        self._decided: set[WorkKey] = set()
        # The loops that are under way.
        self._loops: set[WorkKey] = set()
        # The nodes of runs; and those that a person has marked as done.
        self._nodes: dict[int, str] = {}
        self._fixed: set[str] = set()
        self._wakes: dict[WorkKey, int] = {}
        self._retries: dict[WorkKey, int] = {}
        # Work that waits for the circuit of its target.
        self._held_back: set[WorkKey] = set()
        self._is_final = False
        self._is_paused = False
        self._resolutions: set[int] = set()
        # Runs that a person has set apart, and whose failure follows.
        self._set_apart: set[int] = set()
        self.grants: list[AuditedGrant] = []

    def judge(self, records: Sequence[Stored]) -> None:
        check, last_epoch = self._findings.check, 0
        for place, record in enumerate(records, 1):
            where = f"{self._id}/{place}"
            if record.seq != place:
                # An event is missing or doubled, so every other promise would look broken too.
                self._findings.broke("S1", f"{where} says seq {record.seq}")
                return
            self._findings.saw("S1")
            check("S2", record.epoch >= last_epoch, f"{where} has epoch {record.epoch} after {last_epoch}")
            last_epoch = record.epoch
            if self._is_final and not isinstance(record.event, ev.ExecutionReopened | ev.DeadLetterResolved):
                self._findings.broke("S7", f"{where} follows the end of the execution")
            if not isinstance(record.event, ev.Event):
                break  # a newer version wrote this event, and the events after it cannot be judged
            self._follow(record.event, where)
            check("S2", record.epoch == self.grants[-1].epoch, f"{where}: epoch {record.epoch} was not granted")
        if self._is_final:
            self._findings.saw("S7")

    def _follow(self, event: ev.Event, where: str) -> None:
        if self._is_paused and waits_for_resume(event):
            self._findings.broke("S18", f"{where}: {type(event).__name__} while it was paused")
        match event:
            case ev.ExecutionStarted() | ev.ExecutionAdopted():
                self._granted(AuditedGrant(event.epoch, event.holder), where)
            case ev.RunLeased():
                self._leased(event, where)
            case (
                ev.RunSucceeded()
                | ev.RunFailed()
                | ev.RunLost()
                | ev.RunReleased()
                | ev.ControlRendered()
                | ev.WorkRendered()
            ):
                self._run_ended(event, where)
            case ev.WorkTakenOver():
                self._starts(event.key, where)
                self._decide(event.key, where, End.SUCCEEDED, event.branch)
            case ev.RunCancelled():
                self._free(event.key, event.run)
            case ev.BackoffEnded():
                is_due = 0 < self._retries.pop(event.key, 0) <= event.time
                self._findings.check("S19", is_due, f"{where}: the backoff of {event.key.node} was not due")
            case ev.LoopStarted():
                self._starts(event.key, where)
                self._loops.add(event.key)
            case ev.LoopClosed():
                self._loops.discard(event.key)
            case ev.WorkHeldBack():
                self._free(event.key, event.run)
                self._held_back.add(event.key)
            case ev.WorkLetThrough():
                self._let_through(event, where)
            case ev.RunQuarantined():
                self._set_apart.add(event.run)
            case ev.WaitStarted():
                self._starts(event.key, where)
                self._wakes[event.key] = event.due_time
            case ev.RunDeferred():
                self._wakes[event.key] = event.due_time
            case ev.WaitEnded() if event.outcome is ev.WaitOutcome.EXPIRED:
                is_due = 0 < self._wakes.pop(event.key, 0) <= event.time
                self._findings.check("S19", is_due, f"{where}: the wait of {event.key.node} was not due")
            case ev.WorkSkipped():
                self._joins.ended(event.key.node, End.SKIPPED)
            case ev.WorkBlocked():
                self._joins.ended(event.key.node, End.BLOCKED)
            case ev.ExecutionPaused():
                self._is_paused = True
                self._findings.saw("S18")
            case ev.ExecutionResumed() | ev.StopOrdered():
                self._is_paused = False
            case ev.ExecutionReopened():
                self._reopened(event, where)
            case ev.DeadLetterResolved():
                self._resolved(event, where)
            case ev.ExecutionFinished():
                self._is_final, self._is_paused = True, False
            case _:
                pass

    def _granted(self, grant: AuditedGrant, where: str) -> None:
        """Two holders with one epoch could both write, which is worse than an epoch that does not rise."""
        check, before = self._findings.check, self.grants[-1] if self.grants else None
        is_shared = before is not None and before.epoch == grant.epoch and before.holder != grant.holder
        check("S11", not is_shared, f"{where}: {before} and {grant} hold it")
        rises = is_shared or before is None or before.epoch < grant.epoch
        check("S3", rises, f"{where}: {grant} was granted after {before}")
        self.grants.append(grant)
        if before is not None:
            self._adopted = {lease.number for lease in self._live.values()}
            self._findings.saw("S26", len(self._adopted))

    def _reopened(self, event: ev.ExecutionReopened, where: str) -> None:
        """It is a grant too, if the execution had ended."""
        if self._is_final:
            self._granted(AuditedGrant(event.epoch, event.holder), where)
        self._is_final = False
        for work in event.work:
            self._joins.reopened(work.key.node)
            self._findings.check(
                "S8", work.key not in self._decided, f"{where}: {work.key.node} had its outcome already"
            )

    def _resolved(self, event: ev.DeadLetterResolved, where: str) -> None:
        if event.epoch != self.grants[-1].epoch:
            self._granted(AuditedGrant(event.epoch, event.holder), where)
        self._findings.check("S16", event.run not in self._resolutions, f"{where}: run {event.run} was resolved before")
        self._resolutions.add(event.run)
        if event.resolution is DeadLetterResolution.FIXED and event.run in self._nodes:
            self._fixed.add(self._nodes[event.run])

    def _let_through(self, event: ev.WorkLetThrough, where: str) -> None:
        waited = event.key in self._held_back
        self._findings.check("S20", waited, f"{where}: {event.key.node} was let through by a circuit unasked")
        self._held_back.discard(event.key)

    def _leased(self, event: ev.RunLeased, where: str) -> None:
        key = event.key
        check, before = self._findings.check, self._live.get(key)
        if before is not None and before.number in self._adopted:
            self._findings.broke("S26", f"{where}: {key.node} was granted again though {before} was adopted")
        else:
            check("S11", before is None, f"{where}: {key.node} was leased while {before} held it")
        attempts = self._attempts.setdefault(key, set())
        # Attempt 0 only renders, and may be made again.
        check("S9", event.attempt not in attempts, f"{where}: {key.node} has a second attempt {event.attempt}")
        attempts.update({event.attempt} - {0})
        check("S8", key not in self._decided, f"{where}: {key.node} had its outcome already")
        if key in self._held_back:
            self._findings.broke("S20", f"{where}: {key.node} was leased though its circuit has not let it through")
        self._live[key] = AuditedLease(event.run, event.instance_id, event.is_idempotent)
        self._starts(key, where)

    def _run_ended(self, event: LeaseEnd, where: str) -> None:
        key, lease = event.key, self._free(event.key, event.run)
        self._nodes[event.run] = key.node
        if event.run in self._set_apart:
            # It may have had no runner, and may have failed before with another attempt to come.
            self._set_apart.discard(event.run)
            self._held_back.discard(key)
            self._retries.pop(key, None)
        elif lease is None and isinstance(event, ev.RunSucceeded) and key.node in self._fixed:
            self._fixed.discard(key.node)
        elif lease is None and (self._is_of_control(event) or key in self._held_back):
            # It fails while it is held back, when its retry budget is over.
            self._held_back.discard(key)
            self._starts(key, where)
        elif lease is None:
            name = type(event).__name__
            self._findings.broke("S8", f"{where}: {name} of run {event.run}, which was over")
            return
        match event:
            case ev.RunSucceeded():
                self._decide(key, where, End.SUCCEEDED, event.branch)
            case ev.RunLost():
                assert lease is not None
                lives = lease.instance_id in self._live_instances and not lease.is_idempotent
                self._findings.check("S26", not lives, f"{where}: run {event.run} was lost while {lease} lives")
                if event.reason is not None:
                    self._decide(key, where, End.FAILED)
            case ev.RunFailed() if event.reason is not None:
                self._decide(key, where, End.FAILED)
            case ev.RunFailed():
                self._retries[key] = event.retry_time
            case _:
                pass

    def _is_of_control(self, event: LeaseEnd) -> bool:
        """The core itself ends a control node. A runner may have rendered its config before."""
        node = self._definition.nodes[event.key.node]
        # The items of a loop over a workflow are ended by the core too.
        done = node.body if event.key.iteration else node
        return isinstance(event, ev.RunSucceeded | ev.RunFailed) and done is not None and done.is_control

    def _free(self, key: WorkKey, number: int) -> AuditedLease | None:
        self._adopted.discard(number)
        lease = self._live.get(key)
        if lease is None or lease.number != number:
            return None
        return self._live.pop(key)

    def _starts(self, key: WorkKey, where: str) -> None:
        node = key.node
        if key.iteration:
            is_under_way = key._replace(iteration=0) in self._loops
            self._findings.check("S10", is_under_way, f"{where}: an item of {node} started, and its loop was over")
        elif node != OUTPUT_NODE and self._joins.has_sources(node):
            self._findings.check("S10", self._joins.holds(node), f"{where}: {self._joins.shown(node)}")

    def _decide(self, key: WorkKey, where: str, end: End, branch: str = "") -> None:
        self._findings.check("S8", key not in self._decided, f"{where}: {key.node} has two outcomes")
        self._decided.add(key)
        if not key.iteration:
            self._joins.ended(key.node, end, branch)
