"""Stories of values that are too large for a message: they are brought to a coordinator, and fetched from one."""

from __future__ import annotations

import json
from typing import Any

from windlass.conformance.outputs import REFUSALS
from windlass.conformance.rules import Duty
from windlass.conformance.scene import PATIENCE, KitLease, Scene, told
from windlass.coordinator.v1 import sessions_pb2 as pb

# More than one message of an upload has.
LARGE_CHARACTERS = 1_500_000
# The output of two such texts still goes into a report.
TEXT_CHARACTERS = 100_000


async def output_is_large(scene: Scene) -> None:
    """It is uploaded, when coordinators do not refuse it any more, and reported by its reference."""
    stream = await scene.stream(0)
    inputs = {"text": "x" * LARGE_CHARACTERS}
    scene.outputs.refusals = list(REFUSALS)
    lease = await scene.grant(stream, scene.quick, inputs=_json(inputs))
    report = await _reported(scene, lease)
    uploads = [each for each in scene.outputs.uploads if each.run.lease == lease.message()]
    scene.judge.check(Duty.TRANSFER_AGAIN, bool(uploads), "the upload was not tried again")
    is_kept = report.succeeded.output.ref in [each.ref for each in uploads]
    scene.judge.check(Duty.OUTPUT_UPLOADED, is_kept, f"it was reported as {told(report)}")
    for each in uploads:
        is_kept = each.run.instance_id == stream.instance_id and json.loads(each.text) == inputs
        seen = f"{len(each.text)} bytes came for instance {each.run.instance_id}"
        scene.judge.check(Duty.UPLOAD_FORM, is_kept, seen)


async def inputs_are_references(scene: Scene) -> None:
    """The work sees what its grant refers to, as if it had come with the grant."""
    stream = await scene.stream(0)
    assert stream.attach is not None
    inputs = {"a": "x" * TEXT_CHARACTERS, "b": "y" * TEXT_CHARACTERS}
    scene.outputs.refusals = list(REFUSALS)
    lease = await scene.grant(stream, scene.quick, **_referring(scene, inputs, stream.attach.wants_rendered))
    report = await _reported(scene, lease)
    output = report.succeeded.output.json
    is_seen = bool(output) and json.loads(output) == inputs
    scene.judge.check(Duty.INPUT_FETCHED, is_seen, f"it was reported as {told(report)}")
    for run in scene.outputs.downloads:
        is_kept = run == pb.HeldRun(lease=lease.message(), instance_id=stream.instance_id)
        scene.judge.check(Duty.INPUT_FETCHED, is_kept, f"something was fetched for {run!s:.200}")
    seen = "the download was not tried again"
    scene.judge.check(Duty.TRANSFER_AGAIN, bool(scene.outputs.downloads), seen)


async def reference_is_gone(scene: Scene) -> None:
    stream, gone = await scene.stream(0), pb.OutputRef(key="kit/gone", size_bytes=2)
    assert stream.attach is not None
    fields = _referring(scene, {"a": "", "b": ""}, stream.attach.wants_rendered)
    fields["rendered" if stream.attach.wants_rendered else "execution_input_ref"] = gone
    lease, rule = await scene.grant(stream, scene.quick, **fields), Duty.INPUT_MISSING
    await scene.until(rule, lambda: scene.reports(lease), "nothing is reported", 2 * PATIENCE)
    outcome = scene.reports(lease)[0].WhichOneof("outcome")
    scene.judge.check(rule, outcome == "failed", f"it was reported as {outcome}")


def _referring(scene: Scene, inputs: dict[str, str], wants_rendered: bool) -> dict[str, Any]:
    """The fields of a grant whose work has these inputs: rendered, or as templates with the data that they read."""
    outputs = scene.outputs
    if wants_rendered:
        documents = b'{"config": %b, "inputs": %b}' % (scene.quick.config, _json(inputs))
        return {"config": b"", "inputs": b"", "rendered": outputs.ref(documents)}
    return {
        "has_templates": True,
        "inputs": _json({"a": "{{ input.text }}", "b": "{{ nodes.first.output.text }}"}),
        "state": b"{}",
        "execution_input_ref": outputs.ref(_json({"text": inputs["a"]})),
        "outputs": {"first": pb.Output(ref=outputs.ref(_json({"text": inputs["b"]})))},
    }


async def _reported(scene: Scene, lease: KitLease) -> pb.RunReport:
    seen = "finished work is not reported"
    return (await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), seen, 2 * PATIENCE))[0]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


STORIES = (output_is_large, inputs_are_references, reference_is_gone)
