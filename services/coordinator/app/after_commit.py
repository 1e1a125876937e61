"""After the commit: the effects of what was decided.

First reports are acknowledged and runs are granted, because others wait for them. Then watchers are told. Then the
execution leaves if it is final or can be parked. An execution that owes something to a parent or to children stays
until that is done (`obligations.py`). A crash between any two of these loses nothing: reports are repeated,
the next holder claims the leases, and a finished execution is found finished.

Hazard: a bug in one execution must not harm the others. That execution is handed back where it stands, as if the
process had crashed there, and its next holder goes on from the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from services.chassis.lease.frames import Grant, Lease, Refused, RefusedReport
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.session.registry import SessionRegistry
from services.chassis.session.server import ServerSession
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter, histogram
from services.coordinator.app.circuits import Circuits
from services.coordinator.app.obligations import ObligationKeeper
from services.coordinator.app.owned_execution import OwnedExecution
from services.coordinator.app.owned_executions import OwnedExecutions
from services.coordinator.app.pending_append import PendingAppend
from services.coordinator.app.ports import Dispatch, Watchers
from services.coordinator.app.tracing import emit_spans
from services.coordinator.core.effects import GrantRun, OfStore, ReadItems, StopRun, StoreLoopOutput, parking
from services.coordinator.core.run_ids import run_id
from services.coordinator.core.state import CancelChild, Execution, ReportFinished, StartChild, TellParent
from services.coordinator.core.values import Instant

log = logger(__name__)

_RETRIES: Final = (0, 1, 2, 3, 5, 10, 20, 50, 100)
_US: Final = 1_000_000

# Makes the grant that hands a run to its runner. It is given the effect key of the work, the completion token of the
# run if its module may defer it, the places of the runner that are no reserve, and the targets that must not be called.
RunGrant = Callable[[Execution, GrantRun, str, str, int, Instant, Sequence[str]], Grant]

_leased = counter("coordinator_runs_leased_total", "Runs granted to runners.")
_late = counter("coordinator_late_reports_total", "Reports refused because their lease had ended.")
_lease_latency = histogram(
    "coordinator_lease_latency_seconds", "Time from the moment work is ready until a runner is granted it."
)
_retries = histogram("coordinator_execution_retries", "Retries of an execution, over all its nodes.", buckets=_RETRIES)
_finished = counter("coordinator_executions_finished_total", "Executions that became final.", ["state"])
_parked = counter("coordinator_executions_parked_total", "Executions that gave back slot and memory.")
_broken = counter("coordinator_broken_total", "Executions dropped because deciding or settling them failed.")


def note_broken(owned: OwnedExecution, failure: Exception) -> None:
    _broken.inc()
    log.error("an execution is broken", execution_id=owned.execution_id, epoch=owned.epoch, exc_info=failure)


class _Outbox:
    """The messages of one batch, by session, so that each session is sent to once."""

    def __init__(self) -> None:
        self.grants: defaultdict[ServerSession, list[Grant]] = defaultdict(list)
        self.taken: defaultdict[ServerSession, list[str]] = defaultdict(list)
        self.refused: defaultdict[ServerSession, list[RefusedReport]] = defaultdict(list)
        self.revoked: defaultdict[ServerSession, list[Refused]] = defaultdict(list)
        self.message_ids: list[str] = []


class AfterCommit:
    def __init__(
        self,
        *,
        executions: OwnedExecutions,
        runners: SessionRegistry,
        run_grant: RunGrant,
        dispatch: Dispatch,
        watchers: Watchers,
        obligations: ObligationKeeper,
        ask_store: Callable[[OwnedExecution, OfStore], None],
        circuits: Circuits,
        clock: Clock,
    ) -> None:
        self._executions = executions
        self._runners = runners
        self._run_grant = run_grant
        self._dispatch = dispatch
        self._watchers = watchers
        self._obligations = obligations
        self._ask_store = ask_store
        self._circuits = circuits
        self._clock = clock

    def run(self, batch: Sequence[PendingAppend]) -> None:
        out = _Outbox()
        now = self._clock.epoch_ns() // 1_000
        for pending in batch:
            pending.owned.has_begun |= pending.execution.seq > 0
            if pending.owned.is_dropped:
                # The lease was revoked while the commit was under way. The new holder finds the events in the journal.
                self.give_back_places(pending)
                self._executions.send_away(each.source for each in pending.inputs)
                continue
            try:
                self._answer(pending, out)
                self._act(pending, out, now)
            except Exception as failure:  # noqa: BLE001 - a bug in one execution must not harm the others
                self._hand_back(pending, failure)
        self._send(out)
        for pending in batch:
            if not pending.owned.is_dropped:
                self._tell(pending)
                try:
                    self._leave(pending, now)
                except Exception as failure:  # noqa: BLE001 - as above
                    self._hand_back(pending, failure)

    def give_back_places(self, pending: PendingAppend) -> None:
        for session in pending.places.values():
            session.give_back(1)
        pending.places.clear()

    def _answer(self, pending: PendingAppend, out: _Outbox) -> None:
        for (session, report, message_id), refusal in pending.answers:
            if refusal is not None:
                _late.inc()
                lease_id = report.lease_id if report is not None else pending.owned.execution_id
                log.warning("late report refused", lease_id=lease_id, reason=refusal.reason.value)
            if message_id:
                out.message_ids.append(message_id)
                pending.owned.message_ids.append(message_id)
                pending.owned.unanswered.discard(message_id)
            if session is not None and report is not None:
                if refusal is None:
                    out.taken[session].append(report.report_id)
                else:
                    out.refused[session].append(RefusedReport(report.report_id, refusal.reason.value))
            pending.answered += 1

    def _act(self, pending: PendingAppend, out: _Outbox, now: Instant) -> None:
        execution = pending.execution
        for effect in pending.effects:
            match effect:
                case GrantRun():
                    number = effect.run.number
                    # The grant is made before its place is taken, so that the place can be given back if this raises.
                    session = pending.places[number]
                    keys = pending.effect_keys[number], pending.completion_token(effect.run)
                    places_max = session.data.places_max
                    closed_off = self._circuits.open_names(execution, effect.run) if self._circuits.has_open else ()
                    grant = self._run_grant(execution, effect, *keys, places_max, now, closed_off)
                    out.grants[session].append(grant)
                    del pending.places[number]
                    _lease_latency.observe(max(0, now - pending.ready_times[number]) / _US)
                case StopRun():
                    holder = self._runners.of_instance(effect.instance_id)
                    if holder is not None:
                        lease_id = run_id(execution, effect.number)
                        out.revoked[holder].append(Refused(lease_id, effect.epoch, str(effect.reason)))
                case ReadItems() | StoreLoopOutput():
                    self._ask_store(pending.owned, effect)
                case StartChild() | CancelChild() | TellParent():
                    self._obligations.owe(pending.owned, effect)
                case ReportFinished() if not execution.is_final:
                    # It was reopened in the same batch in which it was found finished, or had just ended.
                    pass
                case ReportFinished():
                    _finished.labels(effect.state.value).inc()
                    _retries.observe(execution.retries)
                    if pending.owned.owed:
                        self._obligations.owe(pending.owned, effect)
                    else:
                        self._dispatch.finished(execution.execution_id, pending.owned.epoch)
                        pending.has_left = True
                case _:
                    assert_never(effect)
        if pending.places:
            self.give_back_places(pending)
        if pending.outcomes:
            self._circuits.note(pending.owned, pending.outcomes)
        if pending.is_adoption:
            self._claim(pending.owned)

    def _claim(self, owned: OwnedExecution) -> None:
        """From now on the live runs of an adopted execution report to this coordinator. A runner that is told to stop
        one answers here anyway."""
        assert owned.execution is not None
        if owned.is_stopping:
            return
        for run in owned.execution.live.values():
            session = self._runners.of_instance(run.instance_id)
            if session is not None:
                session.claim([Lease(run_id(owned.execution, run.number), run.epoch)])

    def _send(self, out: _Outbox) -> None:
        crash_point("coordinator.acknowledge.before")
        for session, report_ids in out.taken.items():
            session.acknowledge(report_ids)
        for session, refused_reports in out.refused.items():
            session.refuse_reports(refused_reports)
        crash_point("coordinator.acknowledge.after")
        crash_point("coordinator.grant.before")
        for session, grants in out.grants.items():
            _leased.inc(len(grants))
            if not session.grant(grants):
                self._executions.unsent(grants)
        crash_point("coordinator.grant.after")
        for session, revoked in out.revoked.items():
            session.revoke(revoked)
        if out.message_ids:
            self._dispatch.journalled(out.message_ids)

    def _tell(self, pending: PendingAppend) -> None:
        """A bug here loses some news, which the journal still has. The execution stays with its holder."""
        owned, execution = pending.owned, pending.execution
        try:
            # A final execution without events was found finished after a take-over. Perhaps nobody was told of it.
            if self._watchers.wants(owned.execution_id, execution.is_final):
                self._watchers.advanced(execution, pending.from_seq, pending.events)
            if owned.trace is not None:
                emit_spans(pending, self._clock.epoch_ns())
        except Exception as failure:
            log.error("watchers cannot be told", execution_id=owned.execution_id, exc_info=failure)

    def _leave(self, pending: PendingAppend, now: Instant) -> None:
        owned, execution = pending.owned, pending.execution
        if owned.inbox:
            return  # there is more to decide before it may leave
        if execution.is_final and not owned.owed:
            self._executions.drop(owned)
            return
        if execution.held_back or execution.let_through:
            self._circuits.follow(owned)
        if owned.lacks_slot(now):
            # Its time to wake has come already, so it is queued for a slot.
            self._park(pending, now)
            return
        wake_time = parking(execution, now, owned.rest_until)
        if wake_time is None or self._circuits.goes_on(execution):
            self._executions.timers.set(owned, execution.next_wake())
            return
        self._park(pending, wake_time)

    def _park(self, pending: PendingAppend, wake_time: Instant) -> None:
        owned, execution = pending.owned, pending.execution
        _parked.inc()
        self._circuits.parked(execution, owned.epoch)
        self._dispatch.parked(owned.execution_id, owned.epoch, wake_time=wake_time, seen=owned.message_ids)
        pending.has_left = True
        self._executions.drop(owned)

    def _hand_back(self, pending: PendingAppend, failure: Exception) -> None:
        """Hands the execution back as failed; after three failures it is a dead letter. Reports that are not answered
        yet go to the mailbox, where the next holder finds them."""
        owned = pending.owned
        note_broken(owned, failure)
        self.give_back_places(pending)
        if pending.has_left:
            self._executions.drop(owned)
        else:
            message = "the coordinator failed after the commit of this execution; its log says why"
            self._executions.return_lease(owned, "INTERNAL", message)
        self._executions.send_away(answer for answer, _ in pending.answers[pending.answered :])
