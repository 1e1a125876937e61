"""One event further: `apply(execution, event)` writes into the state what the event says happened.

Applying an event is bookkeeping. It holds no rule and refuses nothing: whether the event may happen, and what follows
from it, was decided before it was emitted and is not asked again when the journal is folded years later. An event that
does not fit the state is a bug and raises here.

The cost of an event is that of the edges of the work that it names. Nothing is copied.
"""

from collections.abc import Iterable
from typing import assert_never

from services.coordinator.core import events as ev
from services.coordinator.core.fold import (
    children,
    dead_letters,
    graph,
    lifetime,
    loops,
    pausing,
    reopening,
    runs,
    waits,
)
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.state import Answer, Execution
from services.coordinator.core.values import RunState


def fold(execution: Execution, events: Iterable[ev.Event]) -> Execution:
    for event in events:
        apply(execution, event)
    return execution


def apply(execution: Execution, event: ev.Event) -> None:
    execution.seq += 1
    match event:
        case ev.RunSucceeded():
            runs.run_succeeded(execution, event)
        case ev.RunLeased():
            runs.run_leased(execution, event)
        case ev.ExecutionStarted():
            lifetime.execution_started(execution, event)
        case ev.ExecutionFinished():
            lifetime.execution_finished(execution, event)
        case ev.ExecutionAdopted():
            execution.epoch = event.epoch
            execution.holder = event.holder
        case ev.RunStarted():
            runs.run_started(execution, event)
        case ev.RunProgressed():
            runs.run_progressed(execution, event)
        case ev.ControlRendered():
            runs.control_rendered(execution, event)
        case ev.WorkRendered():
            runs.work_rendered(execution, event)
        case ev.RunFailed():
            runs.run_failed(execution, event)
        case ev.RunLost():
            runs.run_lost(execution, event)
        case ev.RunReleased():
            runs.run_released(execution, event)
        case ev.RunCancelled():
            runs.run_cancelled(execution, event)
        case ev.LateReportRejected():
            execution.runs[event.run - 1].is_late_noted = True
        case ev.BackoffEnded():
            graph.backoff_ended(execution, event)
        case ev.WaitStarted():
            waits.wait_started(execution, event)
        case ev.WaitEnded():
            waits.wait_ended(execution, event)
        case ev.LoopEvent():
            loops.apply_to_loop(execution, event)
        case ev.ChildEvent():
            children.apply_to_children(execution, event)
        case ev.WorkSkipped():
            work = graph.passed_over(execution, event.key)
            run = runs.new_run(execution, work, event, RunState.SKIPPED)
            run.start_time = run.end_time = event.time
            graph.apply_consequences(execution, work, event.then)
        case ev.WorkBlocked():
            graph.apply_consequences(execution, graph.passed_over(execution, event.key), event.then)
        case ev.OutputRequested():
            graph.make_ready(execution, execution.work_of(event.key))
        case ev.StopOrdered():
            lifetime.stop_ordered(execution, event)
        case ev.ExecutionPaused():
            pausing.execution_paused(execution, event)
        case ev.ExecutionResumed():
            pausing.execution_resumed(execution, event)
        case ev.ExecutionReopened():
            reopening.execution_reopened(execution, event)
        case ev.DeadLetterResolved():
            dead_letters.dead_letter_resolved(execution, event)
        case ev.RunQuarantined():
            remember(execution, event.message_id)
        case ev.CommandRefused():
            remember(execution, event.message_id, Answer(event.reason, event.message))
        case _:
            assert_never(event)
