"""Stories of work that is an item or a turn of a loop."""

from __future__ import annotations

import json
from typing import Any

from windlass.conformance.rules import Duty
from windlass.conformance.scene import PATIENCE, Scene, told

ITERATION = 3
ITEM = {"id": 7}
# What its templates become, whoever renders them.
INPUTS = {"item": ITEM, "index": ITERATION - 1}


async def work_is_of_a_loop(scene: Scene) -> None:
    """Its templates see the item and its index. After a turn, the runner says whether the loop goes on."""
    stream = await scene.stream(0)
    assert stream.attach is not None
    for until, branch in (("output.index == index", "true"), ("output.item.id > 7", "false")):
        lease = await scene.grant(stream, scene.quick, **_of_loop(until, stream.attach.wants_rendered))
        seen = "finished work is not reported"
        report = (await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), seen, 2 * PATIENCE))[0]  # noqa: B023
        succeeded = report.succeeded
        is_rendered = bool(succeeded.output.json) and json.loads(succeeded.output.json) == INPUTS
        is_kept = is_rendered and (stream.attach.wants_rendered or succeeded.branch == branch)
        scene.judge.check(Duty.LOOP_WORK, is_kept, f"it was reported as {told(report)}")


def _of_loop(until: str, wants_rendered: bool) -> dict[str, Any]:
    """The fields of a grant. A runner that does not render is granted plain inputs, and no expression."""
    if wants_rendered:
        return {"iteration": ITERATION, "inputs": _json(INPUTS)}
    templates = {"item": "{{ item }}", "index": "{{ index }}"}
    return {
        "iteration": ITERATION,
        "inputs": _json(templates),
        "has_templates": True,
        "execution_input": b"{}",
        "state": b"{}",
        "item": _json(ITEM),
        "until": until,
    }


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


STORIES = (work_is_of_a_loop,)
