"""The control nodes: what the core does itself, without a runner.

Each control node is one file with one `Control`, registered below. The core begins a control node when its join holds.
If its config holds templates, a runner has rendered the config first.

To add one, write `controls/<name>.py` in the manner of `sleep.py` and add it to CONTROLS. The schema of its config
stands with those of all modules, in `windlass.definition`.
"""

from services.coordinator.core.controls.control import Control, InvalidConfig
from services.coordinator.core.controls.join import Join
from services.coordinator.core.controls.sleep import Sleep
from services.coordinator.core.events import WaitEnded
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import BrokenInvariant

CONTROLS: dict[str, Control] = {control.module: control for control in (Join(), Sleep())}


def begin(turn: Turn, work: Work) -> None:
    seq = turn.execution.seq
    try:
        CONTROLS[work.node.module].begin(turn, work)
    except InvalidConfig as fault:
        turn.fail(work, "INVALID_CONFIG", str(fault))
    if turn.execution.seq == seq:
        raise BrokenInvariant(f"{work.node.module} began {work.key} without an event")


def resume(turn: Turn, work: Work, end: WaitEnded) -> None:
    CONTROLS[work.node.module].resume(turn, work, end)
