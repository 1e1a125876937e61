"""A person pauses an execution, and lets it go on."""

from services.coordinator.core.answers import answered_once, ended
from services.coordinator.core.commands import Pause, Resume
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import ExecutionPaused, ExecutionResumed
from services.coordinator.core.turn import Turn


@answered_once
def pause(turn: Turn, command: Pause) -> CommandRefusal | None:
    refusal = ended(turn.execution)
    if refusal is None and turn.execution.paused_by is None:
        order_pause(turn, command)
    return refusal


def order_pause(turn: Turn, command: Pause) -> None:
    turn.emit(ExecutionPaused(turn.now, command.message_id, command.caller, command.reason))


@answered_once
def resume(turn: Turn, command: Resume) -> CommandRefusal | None:
    """Timers that came due meanwhile fire with the next tick, which is due at once."""
    if (refusal := ended(turn.execution)) is not None:
        return refusal
    if turn.execution.paused_by is None:
        return CommandRefusal(RefusalReason.EXECUTION_NOT_PAUSED, "the execution is not paused")
    turn.emit(ExecutionResumed(turn.now, command.message_id, command.caller))
    return None
