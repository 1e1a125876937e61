"""for_each@1: do the body once for each item of a list. The output is the list of the outputs, in the same order.

    config: {"items": [...], "maxParallel": 10, "onItemFailure": "FAIL", "body": {...}}

With FAIL, the first item that fails ends the loop, and the items that are under way are stopped. With CONTINUE, its
place in the output has the error.
"""

from services.coordinator.core.controls import loop as loops
from services.coordinator.core.controls.control import InvalidConfig
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.state import Work, WorkLoop
from services.coordinator.core.turn import Turn
from windlass.definition.limits import PARALLEL_DEFAULT, PARALLEL_MAX


class ForEach(loops.LoopControl):
    module = "for_each@1"

    def start(self, turn: Turn, work: Work, config: LoopConfig) -> None:
        members, items = config
        parallel_max = members.get("maxParallel", PARALLEL_DEFAULT)
        if type(parallel_max) is not int or not 1 <= parallel_max <= PARALLEL_MAX:
            raise InvalidConfig(f"maxParallel is a whole number from 1 to {PARALLEL_MAX}")
        on_failure = members.get("onItemFailure", "FAIL")
        if on_failure not in ("FAIL", "CONTINUE"):
            raise InvalidConfig("onItemFailure is FAIL or CONTINUE")
        if items is None:
            raise InvalidConfig("items is a list")
        if not items:
            turn.succeed(work, b"[]")
            return
        continues = on_failure == "CONTINUE"
        loops.start(
            turn, work, count=len(items), parallel_max=parallel_max, continues_on_failure=continues, items=items
        )

    def go_on(self, turn: Turn, loop: WorkLoop) -> None:
        loops.succeed(turn, loop)
