"""A runner that cannot render is granted plain inputs and config."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.chassis.postgres.database import Database
from tests.support.coordinator_stage import Stage, StageRunner, eventually
from tests.support.journals import stored_events
from windlass.coordinator.v1 import reads_pb2
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub
from windlass.coordinator.v1.sessions_pb2 import RunGrant

TEMPLATED = {
    "name": "w",
    "nodes": [{"id": "a", "module": "f.g@1", "config": {"c": "{{ input.n }}"}, "inputs": {"x": "{{ input.n }}"}}],
    "edges": [],
    "output": {"o": "{{ nodes.a.output }}"},
}


def rendered(grant: RunGrant) -> Any:
    """What our own runner returns; it has only to be JSON here."""
    assert (grant.has_templates, orjson.loads(grant.execution_input)) == (True, {"n": 7})
    return {"config": {"c": 7}, "inputs": {"x": 7}} if grant.render_all else {"o": "done"}


async def foreign_runner(on_stage: Stage, address: str) -> StageRunner:
    return await on_stage.runner(address, "foreign", modules=["f.g@1"], wants_rendered=True, work=lambda grant: None)


async def test_runner_without_templates_is_given_what_another_has_rendered(on_stage: Stage, tables: Database) -> None:
    address, session = await on_stage.coordinator()
    foreign = await foreign_runner(on_stage, address)
    order = on_stage.start(session, on_stage.catalog.add("v-templated", **TEMPLATED), input_={"n": 7})
    ours = await on_stage.runner(address, "ours", work=rendered)
    await eventually(lambda: foreign.grants)
    (grant,) = foreign.grants
    assert (grant.has_templates, grant.config, grant.inputs) == (False, b'{"c":7}', b'{"x":7}')
    assert (grant.module, grant.attempt, grant.execution_input) == ("f.g@1", 1, b"")
    assert grant.effect_key
    foreign.answer(grant, "done")
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert [(each.node, each.render_all, each.attempt) for each in ours.grants] == [
        ("a", True, 0),
        ("$output", False, 1),
    ]
    story = [type(each.event).__name__ for each in await stored_events(tables, order.lease.lease_id)]
    assert story.count("WorkRendered") == 1
    reads: Any = ReadServiceStub(on_stage.channel(address))
    for number in (1, 2):
        request = reads_pb2.ReadRunInputsRequest(run_id=f"{order.lease.lease_id}.{number}", workspace="default")
        answer = await reads.ReadRunInputs(request, metadata=on_stage.api_metadata, timeout=30)
        assert orjson.loads(answer.documents) == {"inputs": {"x": 7}, "config": {"c": 7}}


async def test_next_holder_does_not_have_it_rendered_again(on_stage: Stage) -> None:
    address, session = await on_stage.coordinator("0")
    other_address, other = await on_stage.coordinator("1")
    foreign = await foreign_runner(on_stage, address)
    ours = await on_stage.runner(address, "ours", work=rendered)
    order = on_stage.start(session, on_stage.catalog.add("v-templated", **TEMPLATED), input_={"n": 7})
    await eventually(lambda: foreign.grants)
    await on_stage.attach_also(foreign, other_address)
    await on_stage.attach_also(ours, other_address)
    on_stage.start(other, "v-templated", id_=order.lease.lease_id, resumed=True)
    foreign.answer(foreign.grants[0], "done")
    await eventually(lambda: order.lease.lease_id in on_stage.dispatcher.finished)
    assert [each.render_all for each in ours.grants] == [True, False]
    assert len(foreign.grants) == 1


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"module": "f.g@1"}, "all places of the 1 runners that can do it are taken"),
        ({"module": "f.g@1", "inputs": {"x": "{{ input.n }}"}}, "no runner that is connected can render its templates"),
        (
            {"module": "repeat@1", "config": {"until": "output.done", "body": {"module": "f.g@1"}}},
            "no runner that does f.g@1 can evaluate its `until`",
        ),
    ],
)
async def test_work_that_waits_among_runners_that_do_not_render_says_why(
    on_stage: Stage, node: dict[str, Any], why: str
) -> None:
    address, session = await on_stage.coordinator()
    foreign = await on_stage.runner(
        address, "foreign", modules=["f.g@1", "transform@1"], wants_rendered=True, capacity=1, work=lambda grant: None
    )
    on_stage.start(session, on_stage.catalog.add("v-busy", name="b", nodes=[{"id": "b", "module": "f.g@1"}], edges=[]))
    await eventually(lambda: foreign.grants)
    version = on_stage.catalog.add("v-waiting", name="w", nodes=[{"id": "a", **node}], edges=[])
    order = on_stage.start(session, version, input_={"n": 7})
    reads: Any = ReadServiceStub(on_stage.channel(address))
    request = reads_pb2.ExplainExecutionRequest(execution_id=order.lease.lease_id)

    async def sentences() -> list[str]:
        answer = await reads.ExplainExecution(request, metadata=on_stage.api_metadata, timeout=10)
        return [each.message for each in answer.explanation.blockers]

    (sentence,) = await eventually(sentences)
    assert sentence.endswith(f" is ready, and {why}")


async def test_modules_say_which_of_them_are_done_by_a_runner_that_renders(on_stage: Stage) -> None:
    address, _ = await on_stage.coordinator()
    await foreign_runner(on_stage, address)
    reads = ReadServiceStub(on_stage.channel(address))

    async def modules() -> tuple[list[str], list[str]]:
        request = reads_pb2.ListModulesRequest(workspace="default")
        answer = await reads.ListModules(request, metadata=on_stage.api_metadata, timeout=10)
        return list(answer.modules), list(answer.rendering)

    assert await modules() == (["f.g@1"], [])
    await on_stage.runner(address, "ours", modules=["transform@1"])
    assert await modules() == (["f.g@1", "transform@1"], ["transform@1"])
