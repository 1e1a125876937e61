"""Values that were put into the output store for the execution."""

from services.coordinator.core.commands import FinishLoop
from services.coordinator.core.controls import loop as loops
from services.coordinator.core.decision import CommandRefusal
from services.coordinator.core.turn import Turn


def finish_loop(turn: Turn, command: FinishLoop) -> CommandRefusal | None:
    """A loop that is not waiting for it has its outcome, or was ended."""
    loop = turn.execution.unstored.get(command.key)
    if loop is None:
        return None
    if command.output is None:
        loops.fail_too_large(turn, loop)
    else:
        loops.succeed_stored(turn, loop, command.output)
    return None
