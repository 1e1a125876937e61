"""Stories of templates: what they see, and what they become."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from windlass.conformance.rules import OF_RENDERING, Duty
from windlass.conformance.scene import PATIENCE, KitLease, KitWork, Scene, told
from windlass.coordinator.v1 import sessions_pb2 as pb

TEXT = {"braces": "{{ 1 + 1 }}", "block": "{% if true %}x{% endif %}"}
# 2026-03-04T05:06:07Z.
CREATED_SECONDS = 1_772_600_767


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


class Rendered(NamedTuple):
    """Inputs with templates, what else the grant has, and what the inputs become."""

    rule: Duty
    inputs: dict[str, object]
    fields: dict[str, Any]
    expected: dict[str, object]


CASES = (
    Rendered(
        Duty.TEMPLATES_SEE,
        {
            "input": "{{ input.n }}",
            "state": "{{ state.s }}",
            "text": "{{ state.s }} and {{ input.n }}",
            "output": "{{ nodes.done.output.x }}",
            "nothing": "{{ nodes.empty.output }}",
            "node": ["{{ nodes.done.state }}", "{{ nodes.done.error }}"],
            "workflow": "{{ execution.workflow }}",
            "version": "{{ execution.version }}",
            "created": "{{ execution.create_time }}",
        },
        {
            "execution_input": _json({"n": 7}),
            "state": _json({"s": [True, None]}),
            "outputs": {"done": pb.Output(json=_json({"x": [1, "a"]})), "empty": pb.Output()},
            "workflow_version": 3,
            "execution_create_time": Timestamp(seconds=CREATED_SECONDS),
        },
        {
            "input": 7,
            "state": [True, None],
            "text": "[true, null] and 7",
            "output": [1, "a"],
            "nothing": None,
            "node": ["SUCCESS", None],
            "workflow": "conformance",
            "version": 3,
            "created": "2026-03-04T05:06:07Z",
        },
    ),
    Rendered(
        Duty.WITHOUT_OUTPUT,
        {
            "failed": ["{{ nodes.bad.output }}", "{{ nodes.bad.state }}", "{{ nodes.bad.error.type }}"],
            "message": "{{ nodes.bad.error.message }}",
            "skipped": ["{{ nodes.passed.output }}", "{{ nodes.passed.state }}", "{{ nodes.passed.error }}"],
        },
        {
            "without_output": {
                "bad": pb.NodeWithoutOutput(state="FAILED", error_type="ODD", error_message="it was odd"),
                "passed": pb.NodeWithoutOutput(state="SKIPPED"),
            }
        },
        {"failed": [None, "FAILED", "ODD"], "message": "it was odd", "skipped": [None, "SKIPPED", None]},
    ),
    Rendered(
        Duty.EXECUTION_ERROR,
        {"node": "{{ error.node }}", "type": "{{ error.type }}", "message": "{{ error.message }}"},
        {"execution_error": pb.ExecutionError(node="pay", type="DECLINED", message="no money")},
        {"node": "pay", "type": "DECLINED", "message": "no money"},
    ),
    Rendered(
        Duty.INPUT_OVERRIDES,
        {"replaced": "{{ input.n }}", "kept": "{{ input.n }}"},
        {"execution_input": _json({"n": 7}), "input_overrides": _json({"replaced": TEXT, "new": [1]})},
        {"replaced": TEXT, "kept": 7, "new": [1]},
    ),
)


async def grant_has_no_templates(scene: Scene) -> None:
    stream, rule = await scene.stream(0), Duty.TEMPLATES_NONE
    lease = await scene.grant(stream, scene.quick, inputs=_json(TEXT))
    scene.judge.check(rule, *await _output(scene, lease, TEXT))


async def templates_are_rendered(scene: Scene) -> None:
    """The data is that of any execution, of one that undoes what it has done, and of a node that is done again."""
    for case in CASES:
        stream = await scene.stream(0)
        assert stream.attach is not None
        if stream.attach.wants_rendered:
            scene.judge.spared |= OF_RENDERING
            return
        fields = {"execution_input": b"{}", "state": b"{}", **case.fields}
        lease = await scene.grant(stream, scene.quick, inputs=_json(case.inputs), has_templates=True, **fields)
        scene.judge.check(case.rule, *await _output(scene, lease, case.expected))


async def work_is_only_rendered(scene: Scene) -> None:
    """The coordinator does the rest itself, or another runner does it. So the runner need not have the module."""
    stream = await scene.stream(0)
    assert stream.attach is not None
    if stream.attach.wants_rendered:
        scene.judge.spared |= OF_RENDERING
        return
    work = KitWork("conformance.unknown@1", _json({"wait": "{{ input.n }} s"}))
    fields: dict[str, Any] = {"has_templates": True, "execution_input": _json({"n": 7}), "state": b"{}"}
    lease = await scene.grant(stream, work, render_only=True, **fields)
    config = {"wait": "7 s"}
    scene.judge.check(Duty.RENDER_ONLY, *await _output(scene, lease, config))
    lease = await scene.grant(stream, work, render_all=True, attempt=0, inputs=_json({"n": "{{ input.n }}"}), **fields)
    scene.judge.check(Duty.RENDER_ONLY, *await _output(scene, lease, {"config": config, "inputs": {"n": 7}}))


async def _output(scene: Scene, lease: KitLease, expected: object) -> tuple[bool, str]:
    """Whether the work ended well with this output, and what was seen."""
    seen = "finished work is not reported"
    report = (await scene.until(Duty.REPORT_SUCCESS, lambda: scene.reports(lease), seen, 2 * PATIENCE))[0]
    output = report.succeeded.output.json
    return bool(output) and json.loads(output) == expected, f"it was reported as {told(report)}"


STORIES = (grant_has_no_templates, templates_are_rendered, work_is_only_rendered)
