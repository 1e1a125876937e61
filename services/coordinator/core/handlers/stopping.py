"""Orders to end the execution: by a caller, or by the time. The first order decides what it ends as."""

from services.coordinator.core.answers import reopened_since
from services.coordinator.core.commands import Cancel
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import CommandChangedNothing
from services.coordinator.core.fold.answers import answer_to, request_of
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import SECOND, ExecutionState, FinalError


def cancel(turn: Turn, command: Cancel) -> CommandRefusal | None:
    """The message id of a cancel with a request id has a digest. Such a cancel of an execution that is ending anyway is
    put on record, because it may be given once more after a reopening. Of others there are only copies, and each says
    that it was given before."""
    execution = turn.execution
    request, digest = request_of(command.message_id)
    if digest and answer_to(execution, request) is not None:
        # It was answered before, and the execution may have been reopened since.
        return None
    if (refusal := reopened_since(execution, command)) is not None:
        return refusal
    if execution.is_final:
        if execution.state is ExecutionState.CANCELLED:
            return None
        return CommandRefusal(RefusalReason.EXECUTION_FINAL, f"the execution ended as {execution.state}")
    if not execution.is_ending:
        order_cancel(turn, command)
    elif digest:
        turn.emit(CommandChangedNothing(turn.now, command.message_id, command.caller))
    return None


def order_cancel(turn: Turn, command: Cancel) -> None:
    failure = FinalError("", "CANCELLED", command.reason)
    turn.order_stop(ExecutionState.CANCELLED, failure, command.message_id, command.caller)


def order_timeout(turn: Turn) -> None:
    execution = turn.execution
    is_first = execution.deadline_from == execution.origin.create_time
    seconds = (execution.deadline - execution.deadline_from) / SECOND
    message = f"not done {seconds:g} s after it was {'created' if is_first else 'reopened'}"
    turn.order_stop(ExecutionState.TIMEOUT, FinalError("", "TIMEOUT", message))
