"""WorkflowService and CatalogService: definitions in, versions out."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeVar

import orjson

from services.api.app import refusals
from services.api.app.authenticator import Authenticator
from services.api.app.ports import AnnouncedModules, ExecutionReads, NewVersion, WorkflowRecord, Workflows
from services.api.app.startables import Startables
from services.api.rpc import translate
from services.api.rpc.examining import DefinitionExaminer
from services.api.rpc.pages import Page
from services.api.rpc.structs import holding
from services.chassis.grpc.beside import beside
from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.grpc.guard import RpcCall
from services.chassis.identity.callers import caller
from services.chassis.process.crash import crash_point
from windlass.api.v1 import resources_pb2, workflows_pb2_grpc
from windlass.api.v1 import workflows_pb2 as pb
from windlass.catalog.v1 import catalog_pb2, catalog_pb2_grpc
from windlass.definition.verdict import Verdict, child_warnings, warnings_of

T = TypeVar("T")
SHA256_BYTES: Final = 32
# An answer waits so long for the announced modules, which only matter for warnings.
ANNOUNCED_SECONDS: Final = 1.0


class WorkflowServicer(workflows_pb2_grpc.WorkflowServiceServicer):
    def __init__(
        self, workflows: Workflows, startables: Startables, reads: ExecutionReads, examiner: DefinitionExaminer
    ) -> None:
        self._workflows = workflows
        self._startables = startables
        self._reads = reads
        self._examiner = examiner

    async def ApplyWorkflow(self, request: pb.ApplyWorkflowRequest, context: RpcCall) -> pb.ApplyWorkflowResponse:
        # The guard does not check text here, so that a NUL in the definition becomes one of its faults.
        for field in ("etag", "source"):
            if "\x00" in getattr(request, field):
                raise refusals.invalid_field(field, "NUL", "contains a NUL character")
        verdict, source, format_ = await self._examiner.examine(request)
        if verdict.faults:
            raise refusals.invalid_definition(verdict.faults)
        warnings = await self._warnings(verdict)
        actor = caller()
        references = orjson.dumps(verdict.references)
        new = NewVersion(str(uuid.uuid4()), verdict.canonical, references, source, format_.value)
        applied = await self._workflows.apply(actor, verdict.name, new, request.etag)
        self._startables.forget(actor.workspace, verdict.name)
        crash_point("api.workflow.before_answer")
        if isinstance(applied, Refusal):
            raise applied
        return holding(
            pb.ApplyWorkflowResponse,
            workflow=await translate.workflow(applied.workflow),
            change=applied.change,
            warnings=warnings,
        )

    async def ValidateWorkflow(
        self, request: pb.ValidateWorkflowRequest, context: RpcCall
    ) -> pb.ValidateWorkflowResponse:
        verdict, _, _ = await self._examiner.examine(request)
        return pb.ValidateWorkflowResponse(
            faults=[translate.fault(fault) for fault in verdict.faults], warnings=await self._warnings(verdict)
        )

    async def GetWorkflow(self, request: pb.GetWorkflowRequest, context: RpcCall) -> pb.GetWorkflowResponse:
        workspace = caller().workspace
        record = await self._workflows.get(workspace, request.workflow, request.version)
        if record is None and request.version:
            if await self._workflows.get(workspace, request.workflow, 0) is not None:
                raise refusals.version_not_found(request.workflow, request.version)
        if record is None:
            raise refusals.workflow_not_found(request.workflow)
        return holding(pb.GetWorkflowResponse, workflow=await translate.workflow(record))

    async def ListWorkflows(self, request: pb.ListWorkflowsRequest, context: RpcCall) -> pb.ListWorkflowsResponse:
        page = Page(request, "workflows", str(request.show_archived))
        found = await self._workflows.page(
            caller().workspace, page.after, page.size + 1, with_archived=request.show_archived
        )
        shown, token = await beside(
            _bytes_of(found.rows),
            lambda: page.cut(found.rows, lambda row: row.workflow, translate.workflow_of, is_cut=found.is_cut),
        )
        return holding(pb.ListWorkflowsResponse, workflows=shown, next_page_token=token)

    async def ListWorkflowVersions(
        self, request: pb.ListWorkflowVersionsRequest, context: RpcCall
    ) -> pb.ListWorkflowVersionsResponse:
        workspace, page = caller().workspace, Page(request, "versions", request.workflow)
        found = await self._workflows.versions(workspace, request.workflow, page.after_number, page.size + 1)
        if not found.rows and not page.after:
            raise refusals.workflow_not_found(request.workflow)
        shown, token = await beside(
            _bytes_of(found.rows),
            lambda: page.cut(found.rows, lambda row: str(row.version), translate.version, is_cut=found.is_cut),
        )
        return holding(pb.ListWorkflowVersionsResponse, versions=shown, next_page_token=token)

    async def ArchiveWorkflow(self, request: pb.ArchiveWorkflowRequest, context: RpcCall) -> pb.ArchiveWorkflowResponse:
        workflow = await self._set_archived(request.workflow, is_archived=True)
        return holding(pb.ArchiveWorkflowResponse, workflow=workflow)

    async def RestoreWorkflow(self, request: pb.RestoreWorkflowRequest, context: RpcCall) -> pb.RestoreWorkflowResponse:
        workflow = await self._set_archived(request.workflow, is_archived=False)
        return holding(pb.RestoreWorkflowResponse, workflow=workflow)

    async def _set_archived(self, workflow: str, *, is_archived: bool) -> Any:
        actor = caller()
        record = await self._workflows.set_archived(actor, workflow, is_archived=is_archived)
        self._startables.forget(actor.workspace, workflow)
        crash_point("api.workflow.before_answer")
        if record is None:
            raise refusals.workflow_not_found(workflow)
        return await translate.workflow(record)

    async def _warnings(self, verdict: Verdict) -> list[resources_pb2.Fault]:
        announced = AnnouncedModules()
        if verdict.own_modules or verdict.built_in_modules or verdict.rendered:
            # Only warnings depend on the answer, so an unavailable coordinator does not refuse a definition.
            with contextlib.suppress(DependencyUnavailable, TimeoutError, Refusal):
                async with asyncio.timeout(ANNOUNCED_SECONDS):
                    announced = await self._reads.modules(caller().workspace)
        warnings = [*warnings_of(verdict, *announced), *child_warnings(verdict, await self._startable(verdict))]
        return [translate.fault(warning) for warning in warnings]

    async def _startable(self, verdict: Verdict) -> Collection[str]:
        names = {name for name, _ in verdict.children}
        return await self._workflows.startable_names(caller().workspace, names) if names else ()


def _bytes_of(records: Sequence[WorkflowRecord]) -> int:
    return sum(len(record.definition) for record in records)


class CatalogServicer(catalog_pb2_grpc.CatalogServiceServicer):
    def __init__(self, workflows: Workflows, authenticator: Authenticator) -> None:
        self._workflows = workflows
        self._authenticator = authenticator

    async def GetVersion(
        self, request: catalog_pb2.GetVersionRequest, context: RpcCall
    ) -> catalog_pb2.GetVersionResponse:
        record = await self._workflows.version(request.version_id)
        if record is None:
            raise refusals.version_id_not_found(request.version_id)
        return catalog_pb2.GetVersionResponse(**record._asdict())

    async def IdentifyKey(
        self, request: catalog_pb2.IdentifyKeyRequest, context: RpcCall
    ) -> catalog_pb2.IdentifyKeyResponse:
        if len(request.key_hash) != SHA256_BYTES:
            raise refusals.invalid_field("key_hash", "MALFORMED", "must be a SHA-256")
        key = await self._authenticator.record_of(request.key_hash)
        if key is None:
            raise Refusal("API_KEY_NOT_FOUND", "this key is unknown, expired or revoked")
        return translate.identified(key)
