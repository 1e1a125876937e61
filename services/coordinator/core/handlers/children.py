"""News of children: a child is queued, cannot be started, is over, or knows that it is cancelled.

News of a child that nobody waits for starts nothing: it is a repetition, or the wait ended first. It only settles what
was owed to the child. Nothing is added to the journal of a final execution; the end of its lease settles the rest.

A node whose child failed may be held for a person. If the child is then done again and succeeds, its output is that of
the node, as if a person had given it.
"""

from services.coordinator.core.commands import EndChild, MarkFixed, NoteChildCancelTold, NoteChildStarted, RefuseChild
from services.coordinator.core.decision import CommandRefusal
from services.coordinator.core.events import (
    ChildCancelTold,
    ChildRefused,
    ChildStarted,
    WaitEnded,
    WaitKind,
    WaitOutcome,
)
from services.coordinator.core.handlers.reopening import fix_held
from services.coordinator.core.results import ERROR_MESSAGE_MAX, fault_of
from services.coordinator.core.state import ChildExecution, Run, Wait
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import Error, ErrorClass, ExecutionState, FinalError


def note_child_started(turn: Turn, command: NoteChildStarted) -> CommandRefusal | None:
    child = _unstarted(turn, command.child_execution_id)
    if child is not None:
        turn.emit(ChildStarted(turn.now, child.key, child.run, child.execution_id))
    return None


def refuse_child(turn: Turn, command: RefuseChild) -> CommandRefusal | None:
    child = _unstarted(turn, command.child_execution_id)
    if child is None:
        return None
    turn.emit(ChildRefused(turn.now, child.key, child.run, child.execution_id))
    wait = turn.execution.children.get(child.execution_id)
    if wait is not None:
        _end_wait(turn, wait)
        turn.fail(wait.work, command.reason, command.message[:ERROR_MESSAGE_MAX])
    return None


def _unstarted(turn: Turn, child_execution_id: str) -> ChildExecution | None:
    return None if turn.execution.is_final else turn.execution.unstarted.get(child_execution_id)


def note_child_cancel_told(turn: Turn, command: NoteChildCancelTold) -> CommandRefusal | None:
    cancel = turn.execution.uncancelled.get(command.child_execution_id)
    if cancel is not None and not turn.execution.is_final:
        turn.emit(ChildCancelTold(turn.now, cancel.key, cancel.run, cancel.execution_id))
    return None


def end_child(turn: Turn, command: EndChild) -> CommandRefusal | None:
    wait = turn.execution.children.get(command.child_execution_id)
    if wait is None:
        _fix_held(turn, command)
        return None
    error = _error_of(wait, command)
    run = _end_wait(turn, wait)
    if error is None:
        assert command.output is not None
        turn.succeed(wait.work, command.output)
    else:
        turn.fail_run(wait.work, turn.report_of(run), error, random=command.random)
    return None


def _fix_held(turn: Turn, command: EndChild) -> None:
    child_id, output = command.child_execution_id, command.output
    if output is None or fault_of(output, "") is not None:
        return
    for wait in list(turn.execution.waits.values()):
        run = wait.work.run
        if wait.kind is WaitKind.PERSON and wait.work.child_execution_id == child_id and run is not None:
            by = f"execution {child_id}"
            fix_held(turn, MarkFixed(by, by, run.number, output, "it was done again, and has succeeded"))


def _error_of(wait: Wait, command: EndChild) -> Error | None:
    """The error of the node; None: the child succeeded."""
    if command.output is not None:
        # Each level of children may put a level of JSON around the output.
        return fault_of(command.output, "")
    # A child that a person has cancelled is not started again.
    is_final = not wait.work.node.has_own_retry or command.state is ExecutionState.CANCELLED
    error_class = ErrorClass.PERMANENT if is_final else ErrorClass.TRANSIENT
    failure = command.error or FinalError("", command.state.value, "")
    message = f"execution {command.child_execution_id}: {failure.message}"
    return Error(error_class, failure.type, message[:ERROR_MESSAGE_MAX])


def _end_wait(turn: Turn, wait: Wait) -> Run:
    """Returns the run that has waited."""
    assert wait.child is not None
    run = turn.execution.runs[wait.child.run - 1]
    turn.emit(WaitEnded(turn.now, wait.work.key, run.number, WaitOutcome.ARRIVED))
    return run
