"""sub_workflow@1: start an execution of another workflow, and go on with its output when it is over.

    config: {"workflow": "billing", "version": 3, "onParentEnd": "CANCEL"}

The inputs of the node are the input of the child. Without a version, the newest one at the time of the start is taken.
A child is an execution of its own, with a slot of its own. While its parent only waits, the parent has no slot.

    begin ──► WaitStarted, ChildRequested ──► ChildStarted ──► the child ends ──► WaitEnded and the node's outcome
                                       └──► its start is refused ───────────────► WaitEnded, and the node fails

The failure of a child is that of the node. The node starts another child only if it has a retry policy of its own.
"""

import re
from collections.abc import Mapping

from services.coordinator.core.child_ids import child_id
from services.coordinator.core.controls.control import Control, InvalidConfig, config_of, inputs_of
from services.coordinator.core.events import ChildRequested, WaitKind
from services.coordinator.core.results import json_fault
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from windlass.definition.limits import CHILD_DEPTH_MAX, DEPTH_MAX, NAME_FORM, VERSION_MAX


class SubWorkflow(Control):
    module = "sub_workflow@1"
    has_inputs = True

    def begin(self, turn: Turn, work: Work) -> None:
        workflow, version, is_cancelled_with_parent = _config(config_of(work))
        start_child(turn, work, workflow, version, inputs_of(work), is_cancelled_with_parent=is_cancelled_with_parent)


def start_child(
    turn: Turn, work: Work, workflow: str, version: int, input_: bytes, *, is_cancelled_with_parent: bool
) -> None:
    """The work waits for a child, or fails because no child can be started."""
    execution = turn.execution
    if execution.origin.depth >= CHILD_DEPTH_MAX:
        turn.fail(work, "CHILD_TOO_DEEP", f"there are {CHILD_DEPTH_MAX} executions above it, which is the most")
        return
    if json_fault(input_):
        turn.fail(work, "INVALID_CONFIG", f"the inputs are nested deeper than {DEPTH_MAX} levels")
        return
    turn.wait(work, WaitKind.CHILD)
    assert work.run is not None
    run, timeout = work.run.number, work.node.timeout
    turn.emit(
        ChildRequested(
            turn.now,
            work.key,
            run,
            child_id(execution.execution_id, run, turn.now),
            workflow,
            version,
            input_,
            turn.now + timeout if timeout else 0,
            is_cancelled_with_parent,
        )
    )


def _config(config: object) -> tuple[str, int, bool]:
    """The workflow, its version, and whether the child is cancelled when its parent ends."""
    workflow = config.get("workflow") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not isinstance(workflow, str) or not re.fullmatch(NAME_FORM, workflow):
        raise InvalidConfig("sub_workflow@1 takes the name of a workflow")
    version, on_parent_end = config.get("version"), config.get("onParentEnd", "CANCEL")
    if version is not None and (type(version) is not int or not 1 <= version <= VERSION_MAX):
        raise InvalidConfig("the version of sub_workflow@1 is a whole number from 1")
    if on_parent_end not in ("CANCEL", "ABANDON"):
        raise InvalidConfig("onParentEnd of sub_workflow@1 is CANCEL or ABANDON")
    return workflow, version or 0, on_parent_end == "CANCEL"
