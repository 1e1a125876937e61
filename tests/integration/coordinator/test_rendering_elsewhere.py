"""A runner that cannot render is granted plain inputs and config."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.chassis.postgres.database import Database
from tests.integration.coordinator.test_run_outputs import refusal_of
from tests.support.coordinator_stage import Stage, StageRunner, eventually
from tests.support.journals import stored_events
from windlass.coordinator.v1 import dead_letters_pb2, reads_pb2, replays_pb2
from windlass.coordinator.v1.dead_letters_pb2_grpc import DeadLetterReadServiceStub
from windlass.coordinator.v1.reads_pb2_grpc import ReadServiceStub
from windlass.coordinator.v1.replays_pb2_grpc import ReplayServiceStub
from windlass.coordinator.v1.sessions_pb2 import ERROR_CLASS_PERMANENT, RunGrant, RunReport
from windlass.definition.examination import examine

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


DISCREET = {
    **TEMPLATED,
    "recordInputs": False,
    "nodes": [*TEMPLATED["nodes"], {"id": "nap", "module": "sleep@1", "config": {"duration": "{{ input.n }}ms"}}],
    "edges": [{"from": "nap", "to": "a"}],
}
# No module returns them, so they are to be found only where something is shown that was rendered.
SECRETS = ("rendered-config", "rendered-input", '"7ms"')


def rendered_in_secret(grant: RunGrant) -> Any:
    if grant.node == "nap":
        return {"duration": "7ms"}
    return {"config": {"c": SECRETS[0]}, "inputs": {"x": SECRETS[1]}} if grant.render_all else {"o": "done"}


async def text_of(stream: Any) -> str:
    return "".join([str(answer) async for answer in stream])


async def test_what_was_rendered_is_shown_nowhere_if_the_workflow_says_so(on_stage: Stage, tables: Database) -> None:
    version = on_stage.catalog.add("v-discreet", **DISCREET)
    address, session = await on_stage.coordinator()
    foreign = await foreign_runner(on_stage, address)
    order = on_stage.start(session, version, input_={"n": 7})
    await on_stage.runner(address, "ours", work=rendered_in_secret)
    await eventually(lambda: foreign.grants)
    assert [foreign.grants[0].config, foreign.grants[0].inputs] == [
        b'{"c":"rendered-config"}',
        b'{"x":"rendered-input"}',
    ]
    failed = RunReport(failed=RunReport.Failed(type="NO", rendered=b'{"config":{},"inputs":{"x":"rendered-input"}}'))
    setattr(failed.failed, "class", ERROR_CLASS_PERMANENT)
    foreign.report(foreign.grants[0], failed)
    id_ = order.lease.lease_id
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    journal = str([each.event for each in await stored_events(tables, id_)])
    assert all(secret in journal for secret in SECRETS[:2]), "the journal has them"
    channel, as_api = on_stage.channel(address), {"metadata": on_stage.api_metadata, "timeout": 30}
    reads: Any = ReadServiceStub(channel)
    letters: Any = DeadLetterReadServiceStub(channel)
    replays: Any = ReplayServiceStub(channel)
    runs = await reads.ListRuns(reads_pb2.ListRunsRequest(workspace="default", execution_id=id_), **as_api)
    numbers = {each.run.node: each.run.id for each in reversed(runs.runs)}
    shown = {
        "runs": str(runs),
        "events": str(await reads.ListEvents(reads_pb2.ListEventsRequest(execution_id=id_), **as_api)),
        "letter": str(
            await letters.GetDeadLetter(
                dead_letters_pb2.GetDeadLetterRequest(dead_letter_id=runs.runs[-1].run.id, workspace="default"),
                **as_api,
            )
        ),
        "export": await text_of(replays.ExportJournal(replays_pb2.ExportJournalRequest(execution_id=id_), **as_api)),
    }
    assert {name for name, text in shown.items() for secret in SECRETS if secret in text.replace("\\", "")} == set()
    assert '"NO"' in shown["letter"]
    request = reads_pb2.ReadRunOutputRequest(run_id=numbers["a"], workspace="default")
    assert (await refusal_of(text_of(reads.ReadRunOutput(request, **as_api)))).reason == "OUTPUT_NOT_FOUND"
    inputs = reads_pb2.ReadRunInputsRequest(run_id=numbers["a"], workspace="default")
    assert (await refusal_of(reads.ReadRunInputs(inputs, **as_api))).reason == "INPUTS_NOT_RECORDED"


async def test_an_export_without_what_was_rendered_adds_up_to_the_rows_that_it_has(on_stage: Stage) -> None:
    version = on_stage.catalog.add("v-discreet", **DISCREET)
    address, session = await on_stage.coordinator()
    foreign = await foreign_runner(on_stage, address)
    foreign.work = lambda grant: "done"
    order = on_stage.start(session, version, input_={"n": 7})
    await on_stage.runner(address, "ours", work=rendered_in_secret)
    id_ = order.lease.lease_id
    await eventually(lambda: id_ in on_stage.dispatcher.finished)
    as_api: dict[str, Any] = {"metadata": on_stage.api_metadata, "timeout": 30}
    replays: Any = ReplayServiceStub(on_stage.channel(address))
    stream = replays.ExportJournal(replays_pb2.ExportJournalRequest(execution_id=id_), **as_api)
    parts = [part async for answer in stream for part in answer.parts]
    parts[0].header.definition = on_stage.catalog.definitions[version]
    references = orjson.dumps(examine(orjson.loads(parts[0].header.definition)).references)
    requests = [replays_pb2.ReplayPartsRequest(parts=parts, template_references=references)]
    replay = (await replays.ReplayParts(iter(requests), **as_api)).replay
    assert (replay.recorded_hash, replay.recorded_hash != "") == (replay.replayed_hash, True), replay
