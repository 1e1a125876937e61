"""A version keeps the text that its author wrote, and faults in that text name its lines."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct

from services.chassis.grpc.errors import remote_error
from tests.integration.api.conftest import RunningApi
from windlass.api.v1.resources_pb2 import Workflow
from windlass.api.v1.workflows_pb2 import (
    ApplyWorkflowRequest,
    ApplyWorkflowResponse,
    GetWorkflowRequest,
    ListWorkflowsRequest,
    ValidateWorkflowRequest,
)
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub

TEXT = """\
# what is kept: comments, and the order of keys
nodes:
  - {module: noop@1, id: b}
name: written
"""
MEANING = {"name": "written", "nodes": [{"id": "b", "module": "noop@1"}]}


async def call(api: RunningApi, method: str, request: Any) -> Any:
    workflows = WorkflowServiceStub(api.channel())
    return await getattr(workflows, method)(request, metadata=api.bearer(api.keys.admin), timeout=10)


async def test_written_text_comes_back(api: RunningApi) -> None:
    await call(api, "ApplyWorkflow", ApplyWorkflowRequest(source=TEXT))
    found = (await call(api, "GetWorkflow", GetWorkflowRequest(workflow="written"))).workflow
    assert (found.source, found.source_format) == (TEXT, Workflow.YAML)
    assert MessageToDict(found.definition) == MEANING
    (listed,) = (await call(api, "ListWorkflows", ListWorkflowsRequest())).workflows
    assert listed.source == ""


async def test_another_text_of_the_same_meaning_is_no_new_version(api: RunningApi) -> None:
    await call(api, "ApplyWorkflow", ApplyWorkflowRequest(source=TEXT))
    for again in (
        ApplyWorkflowRequest(source=json.dumps(MEANING), source_format=Workflow.JSON),
        ApplyWorkflowRequest(definition=ParseDict(MEANING, Struct())),
    ):
        applied = await call(api, "ApplyWorkflow", again)
        assert applied.change == ApplyWorkflowResponse.UNCHANGED
        assert applied.workflow.source == TEXT


@pytest.mark.parametrize("filling", ["", "x" * 20_000])
async def test_a_struct_has_its_json_for_a_source(api: RunningApi, filling: str) -> None:
    document = {**MEANING, "initialState": {"a": 3, "b": filling}}
    await call(api, "ApplyWorkflow", ApplyWorkflowRequest(definition=ParseDict(document, Struct())))
    found = (await call(api, "GetWorkflow", GetWorkflowRequest(workflow="written"))).workflow
    assert (json.loads(found.source), found.source_format) == (document, Workflow.JSON)


async def test_faults_of_a_text_name_node_and_line(api: RunningApi) -> None:
    text = TEXT.replace("noop@1", "noop")
    found = await call(api, "ValidateWorkflow", ValidateWorkflowRequest(source=text))
    assert [(fault.path, fault.node, fault.line) for fault in found.faults] == [("nodes[0].module", "b", 3)]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(api, "ApplyWorkflow", ApplyWorkflowRequest(source=text))
    assert remote_error(refused.value).reason == "INVALID_DEFINITION"
    assert "definition.nodes[0].module: line 3, node b: say which version" in str(refused.value.details())


async def test_schema_in_a_text_is_judged_beside_its_other_faults(api: RunningApi) -> None:
    text = TEXT.replace("noop@1", "noop") + "inputSchema: {type: nope}\n"
    found = await call(api, "ValidateWorkflow", ValidateWorkflowRequest(source=text))
    assert [(fault.reason, fault.line) for fault in found.faults] == [("MODULE_VERSION_REQUIRED", 3), ("BAD_SCHEMA", 5)]


@pytest.mark.parametrize(
    ("schema", "reason"), [("{maximum: .nan}", "NOT_A_NUMBER"), ('{"items": ' * 50 + "true" + "}" * 50, "TOO_DEEP")]
)
async def test_value_that_no_schema_can_hold_is_one_fault(api: RunningApi, schema: str, reason: str) -> None:
    request = ValidateWorkflowRequest(source=f"{TEXT}inputSchema: {schema}\n")
    found = await call(api, "ValidateWorkflow", request)
    assert [fault.reason for fault in found.faults] == [reason]


async def test_schema_nested_far_too_deep_is_one_fault(api: RunningApi) -> None:
    schema = '{"items":' * 300 + "true" + "}" * 300
    text = json.dumps(MEANING).removesuffix("}") + f', "inputSchema": {schema}}}'
    request = ValidateWorkflowRequest(source=text, source_format=Workflow.JSON)
    found = await call(api, "ValidateWorkflow", request)
    assert [fault.reason for fault in found.faults] == ["TOO_DEEP"]


@pytest.mark.parametrize("request_", [ApplyWorkflowRequest(), ValidateWorkflowRequest()])
async def test_a_definition_or_its_text_must_be_there(api: RunningApi, request_: Any) -> None:
    method = type(request_).__name__.removesuffix("Request")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(api, method, request_)
    assert remote_error(refused.value).reason == "INVALID_REQUEST"
