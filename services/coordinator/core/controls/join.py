"""join@1: pass as soon as the node's own join holds. It brings branches together and has nothing else to do."""

from services.coordinator.core.controls.control import Control
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn


class Join(Control):
    module = "join@1"
    has_config = False

    def begin(self, turn: Turn, work: Work) -> None:
        turn.succeed(work, b"{}")
