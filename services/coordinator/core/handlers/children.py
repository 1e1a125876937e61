"""News of children: a child is queued, cannot be started, or is over.

News of a child that nobody waits for changes nothing. It is a repetition, or the wait ended first.
"""

from services.coordinator.core.commands import EndChild, NoteChildStarted, RefuseChild, ReportOfEnd
from services.coordinator.core.decision import CommandRefusal
from services.coordinator.core.events import ChildStarted, WaitEnded, WaitOutcome
from services.coordinator.core.results import ERROR_MESSAGE_MAX, fault_of
from services.coordinator.core.state import Wait
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import Error, ErrorClass, ExecutionState, FinalError


def note_child_started(turn: Turn, command: NoteChildStarted) -> CommandRefusal | None:
    wait = turn.execution.children.get(command.child_execution_id)
    if wait is not None and command.child_execution_id in turn.execution.unstarted:
        turn.emit(ChildStarted(turn.now, wait.work.key, _run_of(wait), command.child_execution_id))
    return None


def refuse_child(turn: Turn, command: RefuseChild) -> CommandRefusal | None:
    wait = turn.execution.children.get(command.child_execution_id)
    if wait is not None:
        _end_wait(turn, wait)
        turn.fail(wait.work, command.reason, command.message[:ERROR_MESSAGE_MAX])
    return None


def end_child(turn: Turn, command: EndChild) -> CommandRefusal | None:
    wait = turn.execution.children.get(command.child_execution_id)
    if wait is None:
        return None
    error = _error_of(wait, command)
    _end_wait(turn, wait)
    if error is None:
        assert command.output is not None
        turn.succeed(wait.work, command.output)
        return None
    assert wait.work.run is not None
    report = ReportOfEnd(wait.work.run.number, 0, start_time=wait.work.run.start_time, end_time=turn.now)
    turn.fail_run(wait.work, report, error, random=command.random)
    return None


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


def _end_wait(turn: Turn, wait: Wait) -> None:
    turn.emit(WaitEnded(turn.now, wait.work.key, _run_of(wait), WaitOutcome.ARRIVED))


def _run_of(wait: Wait) -> int:
    assert wait.child is not None
    return wait.child.run
