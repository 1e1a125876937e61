"""Goes on with a loop for which the output store has done something: the list of its items was read, or its output is
stored.

A loop that does not wait for the store any more has its outcome, or was ended.
"""

from services.coordinator.core.commands import FinishLoop, StartLoop
from services.coordinator.core.controls import loop as loops
from services.coordinator.core.controls import start_loop as start
from services.coordinator.core.decision import CommandRefusal
from services.coordinator.core.turn import Turn


def start_loop(turn: Turn, command: StartLoop) -> CommandRefusal | None:
    work = turn.execution.unread.get(command.key)
    if work is not None:
        start(turn, work, command.config, command.fault)
    return None


def finish_loop(turn: Turn, command: FinishLoop) -> CommandRefusal | None:
    loop = turn.execution.unstored.get(command.key)
    if loop is not None:
        loops.finish(turn, loop, command.output)
    return None
