"""The part of a batch that belongs to one execution, from the decision in memory to the rows of the append."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from services.chassis.session.server import ServerSession
from services.coordinator.app.assigning import Assignment
from services.coordinator.app.owned_execution import CommandSource, Input, OwnedExecution
from services.coordinator.app.ports import Append, JournalCodec, Snapshot
from services.coordinator.app.trace_segments import run_context
from services.coordinator.core.commands import (
    Adopt,
    Assign,
    AssignedRun,
    Command,
    HeldWork,
    HoldBack,
    ReportFailure,
    ReportOfEnd,
)
from services.coordinator.core.decision import CommandRefusal
from services.coordinator.core.effects import Effect, effects, resume_effects
from services.coordinator.core.events import DeadLetterResolved, Event, ExecutionReopened, RunFailed, RunLost
from services.coordinator.core.handlers import handle
from services.coordinator.core.projection import (
    approval_row,
    dead_letter_row,
    execution_change,
    execution_reopened,
    execution_row,
    is_plain_lease,
    is_plain_result,
    run_change,
    run_lease,
    run_result,
    run_row,
)
from services.coordinator.core.run_ids import run_id
from services.coordinator.core.state import Execution, Run
from services.coordinator.core.summary import summary
from services.coordinator.core.values import ErrorClass, Instant, WorkKey
from windlass.definition.modules import is_own


class TargetOutcome(NamedTuple):
    """How the call of a target ended, for its circuit."""

    target: str
    has_failed: bool
    key: WorkKey
    # The work had a permit of the half-open circuit.
    is_probe: bool
    # The lease of the run, and when it was granted.
    epoch: int
    lease_time: Instant


class PendingAppend:
    """Hazard: the state of the execution is ahead of its journal until the append is committed. If the append is
    refused, the state is worthless and is dropped together with the OwnedExecution."""

    def __init__(self, owned: OwnedExecution, execution: Execution, codec: JournalCodec) -> None:
        self.owned = owned
        self.execution = execution
        self.codec = codec
        self.from_seq = execution.seq
        self.runs_before = len(execution.runs)
        # All its events were decided at this time.
        self.time: Instant = 0
        self.events: list[Event] = []
        self.encoded: list[bytes] = []
        self.encoded_bytes = 0
        self.effects: list[Effect] = []
        # New and changed runs, by number.
        self.runs: dict[int, Run] = {}
        self.inputs: Sequence[Input] = ()
        self.answers: list[tuple[CommandSource, CommandRefusal | None]] = []
        # The number of `answers` that have been given to the outbox.
        self.answered = 0
        # The sessions in which a place is reserved for a run of this append, by the number of the run.
        self.places: dict[int, ServerSession] = {}
        # What the runs called whose reports were accepted, if they named it.
        self.outcomes: list[TargetOutcome] = []
        # The times at which the work of these runs began to wait for a place.
        self.ready_times: dict[int, Instant] = {}
        self.effect_keys: dict[int, str] = {}
        # Some work was to be leased but failed, because no runner can take its inputs.
        self.has_failed_some = False
        self.is_adoption = False
        # A record of the state after this append.
        self.snapshot: Snapshot | None = None
        # The dispatcher was told that the execution is finished or parked.
        self.has_left = False

    def decide_inbox(self, now: int, room: int) -> int:
        """Decides inputs until their events have about `room` bytes, at least one input. Returns the bytes."""
        inbox, self.owned.inbox = self.owned.inbox, []
        self.inputs = inbox
        for place, (command, source) in enumerate(inbox, 1):
            if isinstance(command, Adopt):
                # The effects that the last holder may have left undone are repeated.
                self.is_adoption = True
                self.effects += resume_effects(self.execution)
            if isinstance(command, ReportOfEnd) and command.target:
                self._note_outcome(command)
            refusal = self.apply(command, now)
            if source.session is not None or source.message_id:
                self.answers.append((source, refusal))
            if self.encoded_bytes >= room and place < len(inbox):
                self.inputs, self.owned.inbox = inbox[:place], inbox[place:]
                break
        return self.encoded_bytes

    def _note_outcome(self, report: ReportOfEnd) -> None:
        """Before the report is applied, because only a live run has an outcome. An open circuit that the module found
        by itself says nothing about the target."""
        error = report.error if isinstance(report, ReportFailure) else None
        error_class = None if error is None else error.error_class
        run = self.execution.live.get(report.run)
        if run is None or error_class is ErrorClass.CIRCUIT_OPEN or not _is_holder(run, report):
            return
        work = run.work
        target = f"{work.node.runner_module} {report.target}"
        passed = self.execution.let_through.get(work.key)
        is_probe = passed is not None and passed.is_probe and passed.target == target
        has_failed = error_class in (ErrorClass.TRANSIENT, ErrorClass.TIMEOUT)
        self.outcomes.append(TargetOutcome(target, has_failed, work.key, is_probe, run.epoch, run.create_time))

    def hold_back(self, works: Sequence[HeldWork], now: int) -> None:
        """Keeps ready work from runners, because the circuits of its targets are open."""
        self.apply(HoldBack(works), now)

    def apply(self, command: Command, now: int) -> CommandRefusal | None:
        execution = self.execution
        self.time = now
        decision = handle(execution, command, now)
        self.events += decision.events
        for event in decision.events:
            encoded = self.codec.encode_event(event)
            self.encoded.append(encoded)
            self.encoded_bytes += len(encoded)
            self.effects += effects(execution, event)
            if number := getattr(event, "run", 0):
                self.runs[number] = execution.runs[number - 1]
        if self.owned.snapshots is not None:
            self.owned.snapshots.note(execution, decision.events)
        return decision.refusal

    def assign(self, given: Sequence[Assignment], now: int) -> bool:
        """Leases work to runners with a reserved place. False: it was refused, and the caller gives the places back."""
        trace = self.owned.trace
        number = len(self.execution.runs)
        grants = [
            AssignedRun(
                work,
                (attach := session.attach).instance_id,
                attach.holder,
                run_context(trace, run_number).header() if trace else "",
                work.node.runner_module in session.data.idempotent_modules,
                is_rendering,
            )
            for run_number, (work, session, _, is_rendering) in enumerate(given, number + 1)
        ]
        if self.apply(Assign(grants), now) is not None:
            return False
        for run_number, (_, session, since, _) in enumerate(given, number + 1):
            self.places[run_number], self.ready_times[run_number] = session, since
            if not self.execution.runs[run_number - 1].instance_id:
                self.has_failed_some = True
        return True

    def append(self) -> Append:
        execution, owned = self.execution, self.owned
        assert owned.version is not None
        effect_keys = owned.version.effect_keys
        leased: list[tuple[Any, ...]] = []
        made: list[tuple[Any, ...]] = []
        ended: list[tuple[Any, ...]] = []
        moved: list[tuple[Any, ...]] = []
        for number, run in self.runs.items():
            if number <= self.runs_before:
                if is_plain_result(run):
                    ended.append(run_result(execution, run))
                else:
                    moved.append(run_change(execution, run))
                continue
            key = "" if run.is_rendering else effect_keys.of(execution.execution_id, run)
            self.effect_keys[number] = key
            if is_plain_lease(run):
                leased.append((*run_lease(execution, run), key))
            else:
                made.append((*run_row(execution, run), key))
        # An execution that started in this append has its deadline in its first row.
        is_reopened = self.from_seq > 0 and bool(execution.answers) and self._is_reopened()
        if is_reopened:
            row = execution_reopened(execution)
        else:
            row = execution_change(execution) if self.from_seq else execution_row(execution)
        has_summary = execution.final_state is not None or execution.paused_by is not None
        row = (*row, summary_json(execution) if has_summary else None)
        entry = self.codec.seal(owned.execution_id, self.from_seq + 1, execution.epoch, self.time, self.encoded)
        approvals = self._approvals() if execution.approvals else ()
        return Append(
            owned.execution_id,
            owned.epoch,
            self.from_seq,
            execution.seq,
            entry,
            row,
            leased,
            made,
            ended,
            moved,
            approvals,
            is_reopened,
            self._dead_letters() if execution.dead_letters else (),
            self.snapshot,
        )

    def completion_token(self, run: Run) -> str:
        """Empty for the modules that never hand their work to somebody else."""
        module = run.work.node.runner_module
        if "." not in module or run.is_rendering or not is_own(module):
            return ""
        assert self.owned.version is not None
        return self.owned.version.completion_tokens.of(run_id(self.execution, run.number))

    def _is_reopened(self) -> bool:
        # Only a command of a person reopens, so only an execution with answers is asked.
        return any(isinstance(event, ExecutionReopened) for event in self.events)

    def _approvals(self) -> list[tuple[Any, ...]]:
        """Every event of an approval names its run."""
        execution = self.execution
        return [approval_row(execution, number) for number in self.runs if number in execution.approvals]

    def _dead_letters(self) -> Sequence[tuple[Any, ...]]:
        """The rows of the dead letters that are new or were resolved."""
        letters = self.execution.dead_letters
        # Only a dead letter's failure and its resolution are such events of its run.
        changes = (event for event in self.events if isinstance(event, DeadLetterResolved | RunFailed | RunLost))
        numbers = dict.fromkeys(event.run for event in changes if event.run in letters)
        return [dead_letter_row(self.execution, letters[number]) for number in numbers]


def _is_holder(run: Run, report: ReportOfEnd) -> bool:
    return run.epoch == report.epoch and report.instance_id in ("", run.instance_id)


def summary_json(execution: Execution) -> str | None:
    """How the nodes of a final execution ended, or who has paused the execution. Nearly all appends write neither."""
    if execution.is_final:
        return orjson.dumps(summary(execution)._asdict()).decode()
    if execution.paused_by is not None:
        return orjson.dumps({"pause": execution.paused_by._asdict()}).decode()
    return None
