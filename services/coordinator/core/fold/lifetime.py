"""Bookkeeping of the execution as a whole: it starts, is told to end, and ends."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.answers import remember, request_of
from services.coordinator.core.fold.graph import cancel, passed_over, release_targets
from services.coordinator.core.fold.pausing import end_pause
from services.coordinator.core.fold.timers import set_timer
from services.coordinator.core.state import Execution, ReportFinished, Stop, TellParent, TimerKind
from services.coordinator.core.values import BrokenInvariant


def execution_started(execution: Execution, event: ev.ExecutionStarted) -> None:
    execution.epoch = event.epoch
    execution.holder = event.holder
    execution.origin = event.origin
    execution.grant_time = event.grant_time
    execution.start_time = event.time
    execution.deadline_from = event.origin.create_time
    execution.retry = event.retry
    if event.deadline_time:
        execution.deadline = event.deadline_time
        set_timer(execution, event.deadline_time, TimerKind.DEADLINE)
    release_targets(execution, event.then)


def execution_adopted(execution: Execution, event: ev.ExecutionAdopted) -> None:
    execution.epoch = event.epoch
    execution.holder = event.holder


def stop_ordered(execution: Execution, event: ev.StopOrdered) -> None:
    end_pause(execution)
    if request_of(event.message_id)[1]:
        remember(execution, event.message_id)
    execution.stop = Stop(event.outcome, event.error)
    set_timer(execution, event.answer_by_time, TimerKind.ANSWER)
    for key in event.cancelled:
        cancel(execution, execution.work[key])
    for key in event.passed_over:
        passed_over(execution, key)


def execution_finished(execution: Execution, event: ev.ExecutionFinished) -> None:
    if execution.is_going:
        raise BrokenInvariant("finished with work under way")
    end_pause(execution)
    execution.final_state = event.state
    execution.output = event.output
    execution.error = event.error
    execution.end_time = event.time
    execution.end_seq = execution.seq
    execution.timers.clear()
    if execution.origin.parent_execution_id:
        execution.obligations.append(TellParent(execution.origin.parent_execution_id))
    execution.obligations.append(ReportFinished(event.state))
