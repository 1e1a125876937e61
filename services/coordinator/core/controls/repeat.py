"""repeat@1: do the body again and again, until an expression over its output is true.

    config: {"until": "output.status == 'done'", "maxIterations": 100, "delay": "10s", "body": {...}}

The runner of a turn evaluates `until` after it, and reports the branch `true` or `false`. The output is that of the
last turn and the number of turns.
"""

from services.coordinator.core.controls import loop as loops
from services.coordinator.core.controls.control import InvalidConfig
from services.coordinator.core.events import LoopContinued, WaitEnded, WaitKind
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.loop_outputs import last_turn
from services.coordinator.core.loops import DONE, items_begin
from services.coordinator.core.state import Work, WorkLoop
from services.coordinator.core.turn import Turn
from windlass.definition.durations import parse_duration
from windlass.definition.limits import TURNS_MAX


class Repeat(loops.LoopControl):
    module = "repeat@1"

    def start(self, turn: Turn, work: Work, config: LoopConfig) -> None:
        members = config.members
        count = members.get("maxIterations", TURNS_MAX)
        if type(count) is not int or not 1 <= count <= TURNS_MAX:
            raise InvalidConfig(f"maxIterations is a whole number from 1 to {TURNS_MAX}")
        try:
            delay = parse_duration(members.get("delay", 0))
        except ValueError as fault:
            raise InvalidConfig(str(fault)) from None
        loops.start(turn, work, count=count, parallel_max=1, delay=delay)

    def go_on(self, turn: Turn, loop: WorkLoop) -> None:
        run = last_turn(turn.execution, loop).run
        assert run is not None
        if run.branch == DONE:
            loops.succeed(turn, loop)
        elif loop.begun == loop.count:
            loops.fail(turn, loop, "MAX_ITERATIONS", f"its `until` is still false after {loop.count} turns")
        else:
            turn.wait(loop.work, WaitKind.TIMER, turn.now + loop.delay)

    def resume(self, turn: Turn, work: Work, end: WaitEnded) -> None:
        loop = turn.execution.loops[work.key]
        turn.emit(LoopContinued(turn.now, work.key, end.run, items_begin(loop, 1)))
