"""Answers each command of a person once.

The answer is an event that carries the command's message id: the event says what was changed, or it is a
CommandRefused or a CommandChangedNothing. The state remembers the newest answers (`fold/answers.py`), so a repeated
command gives no events and gets the first answer, whoever holds the execution by then. The message id ends with a
digest of the content, so a command that has the request id of an earlier one, and other content, is known and refused.

Nothing is added to the journal of a final execution, so a command that it refuses is answered by its end. A copy of
such a command may come after the execution was reopened. It names the newest event that its giver had seen, and that
is one from before the end.
"""

from collections.abc import Callable
from typing import TypeVar

from services.coordinator.core.commands import AfterEndCommand, Cancel, PersonCommand
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import CommandChangedNothing, CommandRefused, Event
from services.coordinator.core.fold.answers import answer_to, request_of
from services.coordinator.core.state import Execution
from services.coordinator.core.turn import Turn

_Command = TypeVar("_Command", bound=PersonCommand)
PersonHandler = Callable[[Turn, _Command], CommandRefusal | None]

_REUSED = CommandRefusal(RefusalReason.REQUEST_ID_REUSED, "this request_id was used before with other content")


def answered_once(handler: PersonHandler[_Command]) -> PersonHandler[_Command]:
    """Gives the handler each command once, and puts the answer on record if no other event has it."""

    def handle(turn: Turn, command: _Command) -> CommandRefusal | None:
        request, digest = request_of(command.message_id)
        before = answer_to(turn.execution, request)
        if before is None:
            is_bound_to_life = not isinstance(command, AfterEndCommand)
            refusal = (reopened_since(turn.execution, command) if is_bound_to_life else None) or handler(turn, command)
        elif digest == before.digest:
            return CommandRefusal(RefusalReason(before.reason), before.message) if before.reason else None
        else:
            refusal = _REUSED
        if not turn.events and not turn.execution.is_final:
            turn.emit(_on_record(turn, command, refusal))
        return refusal

    return handle


def _on_record(turn: Turn, command: PersonCommand, refusal: CommandRefusal | None) -> Event:
    if refusal is None:
        return CommandChangedNothing(turn.now, command.message_id, command.caller)
    return CommandRefused(turn.now, command.message_id, command.caller, refusal.reason.value, refusal.message)


def reopened_since(execution: Execution, command: PersonCommand | Cancel) -> CommandRefusal | None:
    """The refusal of a command that was given before the last end of an execution which goes on again."""
    if command.seen_seq is None or command.seen_seq >= execution.end_seq or execution.is_final:
        return None
    message = "the execution has ended since the command was given, and was reopened"
    return CommandRefusal(RefusalReason.EXECUTION_FINAL, message)


def ended(execution: Execution) -> CommandRefusal | None:
    """The refusal of a command that needs an execution which goes on."""
    if execution.is_final:
        return CommandRefusal(RefusalReason.EXECUTION_FINAL, f"the execution has already ended: {execution.state}")
    if execution.stop is not None:
        return CommandRefusal(RefusalReason.EXECUTION_FINAL, f"the execution is ending: {execution.stop.outcome}")
    return None
