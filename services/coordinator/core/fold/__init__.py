"""One event further: `apply(execution, event)` writes into the state what the event says happened.

Applying an event is bookkeeping. It holds no rule and refuses nothing: whether the event may happen, and what follows
from it, was decided before it was emitted and is not asked again when the journal is folded years later. An event that
does not fit the state is a bug and raises here.

The cost of an event is that of the edges of the work that it names. Nothing is copied.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from services.coordinator.core import events as ev
from services.coordinator.core.fold import (
    answers,
    approvals,
    children,
    circuits,
    compensating,
    dead_letters,
    graph,
    lifetime,
    loops,
    pausing,
    reopening,
    runs,
    signals,
    waits,
)
from services.coordinator.core.state import Execution

# A table takes the same time for each of the events. Most of them are leases and successes of runs.
BOOKKEEPING: Mapping[type[ev.Event], Callable[[Execution, Any], None]] = {
    ev.ExecutionStarted: lifetime.execution_started,
    ev.ExecutionAdopted: lifetime.execution_adopted,
    ev.StopOrdered: lifetime.stop_ordered,
    ev.CompensationStarted: compensating.compensation_started,
    ev.ExecutionFinished: lifetime.execution_finished,
    ev.OutputRequested: graph.output_requested,
    ev.RunLeased: runs.run_leased,
    ev.RunStarted: runs.run_started,
    ev.RunProgressed: runs.run_progressed,
    ev.RunSucceeded: runs.run_succeeded,
    ev.WorkTakenOver: runs.work_taken_over,
    ev.RunFailed: runs.run_failed,
    ev.RunLost: runs.run_lost,
    ev.RunReleased: runs.run_released,
    ev.RunCancelled: runs.run_cancelled,
    ev.LateReportRejected: runs.late_report_rejected,
    ev.ControlRendered: runs.control_rendered,
    ev.WorkRendered: runs.work_rendered,
    ev.WorkSkipped: runs.work_skipped,
    ev.WorkBlocked: graph.work_blocked,
    ev.BackoffEnded: graph.backoff_ended,
    ev.WorkHeldBack: circuits.work_held_back,
    ev.WorkLetThrough: circuits.work_let_through,
    ev.WaitStarted: waits.wait_started,
    ev.WaitEnded: waits.wait_ended,
    ev.RunDeferred: waits.apply_outside,
    ev.OutsideAnswered: waits.apply_outside,
    ev.SignalReceived: signals.apply_signal,
    ev.SignalTaken: signals.apply_signal,
    ev.ApprovalRequested: approvals.apply_approval,
    ev.ApprovalDecided: approvals.apply_approval,
    **dict.fromkeys(get_args(ev.LoopEvent), loops.apply_to_loop),
    **dict.fromkeys(get_args(ev.OfChild), children.apply_to_children),
    ev.ExecutionPaused: pausing.execution_paused,
    ev.ExecutionResumed: pausing.execution_resumed,
    ev.ExecutionReopened: reopening.execution_reopened,
    ev.DeadLetterResolved: dead_letters.dead_letter_resolved,
    ev.RunQuarantined: dead_letters.run_quarantined,
    ev.CommandRefused: answers.command_refused,
    ev.CommandChangedNothing: answers.command_changed_nothing,
}
assert BOOKKEEPING.keys() == set(get_args(ev.Event)), "an event has no bookkeeping"


def fold(execution: Execution, events: Iterable[ev.Event]) -> Execution:
    for event in events:
        apply(execution, event)
    return execution


def apply(execution: Execution, event: ev.Event) -> None:
    execution.seq += 1
    BOOKKEEPING[type(event)](execution, event)
