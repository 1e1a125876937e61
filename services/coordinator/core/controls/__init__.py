"""The control nodes: what the core does itself, without a runner.

Each control node is one file with one `Control`, registered below. The core begins a control node when its join holds.
If its config holds templates, a runner has rendered the config first.

To add one, write `controls/<name>.py` in the manner of `sleep.py` and add it to CONTROLS. The schema of its config
stands with those of all modules, in `windlass.definition`.
"""

from services.coordinator.core.controls.control import Control, InvalidConfig
from services.coordinator.core.controls.for_each import ForEach
from services.coordinator.core.controls.join import Join
from services.coordinator.core.controls.loop import LoopControl
from services.coordinator.core.controls.repeat import Repeat
from services.coordinator.core.controls.request_approval import RequestApproval
from services.coordinator.core.controls.sleep import Sleep
from services.coordinator.core.controls.state_set import StateSet
from services.coordinator.core.controls.sub_workflow import SubWorkflow
from services.coordinator.core.controls.wait_signal import WaitSignal
from services.coordinator.core.events import ItemsRead, WaitEnded, WaitOutcome
from services.coordinator.core.items import LoopConfig
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import BrokenInvariant
from services.coordinator.core.workflow_state import state_conflict

_CONTROLS = (ForEach(), Join(), Repeat(), RequestApproval(), Sleep(), StateSet(), SubWorkflow(), WaitSignal())
CONTROLS: dict[str, Control] = {control.module: control for control in _CONTROLS}


def begin(turn: Turn, work: Work) -> None:
    count = len(turn.events)
    if conflict := state_conflict(turn.execution, work.node):
        turn.fail(work, "STATE_CONFLICT", conflict)
        return
    try:
        CONTROLS[work.node.module].begin(turn, work)
    except InvalidConfig as fault:
        turn.fail(work, "INVALID_CONFIG", str(fault))
    _assert_went_on(turn, work, count)


def start_loop(turn: Turn, work: Work, config: LoopConfig | None, fault: str) -> None:
    """The config of a loop was read from the output store. None: it is no config of a loop, for this reason."""
    control = CONTROLS[work.node.module]
    assert isinstance(control, LoopControl)
    turn.emit(ItemsRead(turn.now, work.key, turn.run_of(work)))
    try:
        if config is None:
            raise InvalidConfig(fault)
        control.start(turn, work, config)
    except InvalidConfig as invalid:
        turn.fail(work, "INVALID_CONFIG", str(invalid))


def end_wait(turn: Turn, work: Work, outcome: WaitOutcome) -> None:
    """The wait of this work is over, and its control goes on. Every command that ends a wait does so here, whether the
    time is over or a message has come."""
    assert work.run is not None
    end = WaitEnded(turn.now, work.key, work.run.number, outcome)
    turn.emit(end)
    count = len(turn.events)
    CONTROLS[work.node.module].resume(turn, work, end)
    _assert_went_on(turn, work, count)


def _assert_went_on(turn: Turn, work: Work, count: int) -> None:
    """Work that neither waits nor has an outcome would never be looked at again."""
    if len(turn.events) == count:
        raise BrokenInvariant(f"{work.node.module} left {work.key} without an event")
