"""state.set@1: set keys of the workflow's state for all nodes behind this one.

    inputs: {"region": "eu", "total": "{{ nodes.sum.output.total }}"}

The output is the inputs, rendered. Which nodes see what was set is decided where they ask (`workflow_state.py`).
"""

from services.coordinator.core.controls.control import Control, InvalidConfig, config_of
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import INLINE_BYTES_MAX
from services.coordinator.core.workflow_state import STATE_VALUE_BYTES_MAX, settings_of
from windlass.definition.modules import STATE_SETTER


class StateSet(Control):
    module = STATE_SETTER

    def begin(self, turn: Turn, work: Work) -> None:
        # The inputs of this node are compiled as its config, which is what a runner renders.
        inputs = config_of(work)
        if not isinstance(inputs, dict):
            raise InvalidConfig("the rendered inputs are no object")
        settings = settings_of(work.node.id, inputs)
        too_large = [key for key, setting in settings.items() if len(setting.value) > STATE_VALUE_BYTES_MAX]
        output = work.config or work.node.config
        assert isinstance(output, bytes), "config_of refuses anything else"
        if too_large or len(output) > INLINE_BYTES_MAX:
            named = f"state.{too_large[0]} has" if too_large else "all keys together have"
            most = STATE_VALUE_BYTES_MAX if too_large else INLINE_BYTES_MAX
            turn.fail(work, "STATE_TOO_LARGE", f"{named} more than {most} bytes of JSON")
        else:
            turn.succeed(work, output)
