"""A change whose answer was lost is asked for again, and answered as the first time; nothing is changed twice."""

from __future__ import annotations

from typing import Any

import grpc
import psycopg
import pytest
from google.protobuf import json_format

from services.chassis.grpc.errors import remote_error
from tests.integration.api.conftest import RunningApi
from windlass.api.v1 import workflows_pb2, workspaces_pb2
from windlass.api.v1.workflows_pb2_grpc import WorkflowServiceStub
from windlass.api.v1.workspaces_pb2_grpc import ApiKeyServiceStub, WorkspaceServiceStub


async def changes(api: RunningApi) -> int:
    async with await psycopg.AsyncConnection.connect(api.url) as connection:
        row = await (await connection.execute("SELECT count(*) FROM audit")).fetchone()
        assert row is not None
        return int(row[0])


async def twice(api: RunningApi, method: Any, request: Any, key: str) -> tuple[Any, Any]:
    """Both answers; the second call changes nothing."""
    first = await method(request, metadata=api.bearer(key), timeout=10)
    before = await changes(api)
    second = await method(request, metadata=api.bearer(key), timeout=10)
    assert await changes(api) == before
    return first, second


def parsed(kind: Any, **fields: Any) -> Any:
    return json_format.ParseDict(fields, kind())


async def test_workflow(api: RunningApi) -> None:
    workflows = WorkflowServiceStub(api.channel())
    apply = parsed(workflows_pb2.ApplyWorkflowRequest, definition={"name": "lost"})
    first, second = await twice(api, workflows.ApplyWorkflow, apply, api.keys.admin)
    assert first.workflow == second.workflow
    # Also under an etag, which the first call has made an old one.
    apply = parsed(
        workflows_pb2.ApplyWorkflowRequest,
        definition={"name": "lost", "description": "new"},
        etag=first.workflow.etag,
    )
    first, second = await twice(api, workflows.ApplyWorkflow, apply, api.keys.admin)
    assert first.workflow == second.workflow
    for method, request in (
        (workflows.ArchiveWorkflow, workflows_pb2.ArchiveWorkflowRequest(workflow="lost")),
        (workflows.RestoreWorkflow, workflows_pb2.RestoreWorkflowRequest(workflow="lost")),
    ):
        first, second = await twice(api, method, request, api.keys.admin)
        assert first == second


async def test_workspace(api: RunningApi) -> None:
    workspaces = WorkspaceServiceStub(api.channel())
    create = parsed(
        workspaces_pb2.CreateWorkspaceRequest, workspace="lost", tier="PRO", limits={"queuedMax": 7}
    )
    first, second = await twice(api, workspaces.CreateWorkspace, create, api.keys.system)
    assert first == second
    update = parsed(
        workspaces_pb2.UpdateWorkspaceRequest,
        workspace={"workspace": "lost", "tier": "FREE"},
        updateMask="tier",
        etag=first.workspace.etag,
    )
    first, second = await twice(api, workspaces.UpdateWorkspace, update, api.keys.system)
    assert first == second
    update.workspace.tier = workspaces_pb2.ENTERPRISE
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await workspaces.UpdateWorkspace(update, metadata=api.bearer(api.keys.system), timeout=10)
    assert remote_error(refused.value).reason == "ETAG_MISMATCH"
    delete = workspaces_pb2.DeleteWorkspaceRequest(workspace="lost")
    first, second = await twice(api, workspaces.DeleteWorkspace, delete, api.keys.system)
    assert first == second


async def test_key(api: RunningApi) -> None:
    keys = ApiKeyServiceStub(api.channel())
    create = parsed(workspaces_pb2.CreateApiKeyRequest, role="VIEWER", title="reports", requestId="lost")
    first, second = await twice(api, keys.CreateApiKey, create, api.keys.admin)
    assert first == second
    listing = workspaces_pb2.ListApiKeysRequest()
    await keys.ListApiKeys(listing, metadata=api.bearer(api.keys.admin), timeout=10)
    create.title = "other reports"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await keys.CreateApiKey(create, metadata=api.bearer(api.keys.admin), timeout=10)
    assert remote_error(refused.value).reason == "REQUEST_ID_REUSED"
    workflows = WorkflowServiceStub(api.channel())
    await workflows.ListWorkflows(
        workflows_pb2.ListWorkflowsRequest(), metadata=api.bearer(second.key), timeout=10
    )
    revoke = workspaces_pb2.RevokeApiKeyRequest(key_id=first.api_key.key_id)
    first, second = await twice(api, keys.RevokeApiKey, revoke, api.keys.admin)
    assert first == second
