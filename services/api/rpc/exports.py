"""ExportService: executions leave and come as parts, and journals are folded again. Coordinators have the journals, and
api has the definitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Protocol

import orjson

from services.api.app import refusals
from services.api.app.executions import Executions
from services.api.app.identifiers import Identifiers
from services.api.app.ports import ExecutionView, ImportedTo, Workflows
from services.api.rpc import translate
from services.api.rpc.examining import DefinitionExaminer
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.guard import RpcCall
from services.chassis.identity.callers import caller
from windlass.api.v1 import exports_pb2 as pb
from windlass.api.v1 import exports_pb2_grpc
from windlass.api.v1.resources_pb2 import Workflow
from windlass.api.v1.workflows_pb2 import ValidateWorkflowRequest

# An export without outputs. The journal of an execution with 100,000 events has some 20 MiB.
REPLAY_BYTES_MAX: Final = 64 * 1024 * 1024
# An export with outputs.
IMPORT_BYTES_MAX: Final = 1024 * 1024 * 1024


class JournalReplays(Protocol):
    """Any coordinator."""

    def export(self, execution_id: str) -> AsyncIterator[Sequence[Any]]: ...
    async def replay(self, execution_id: str) -> Any: ...
    async def replay_parts(self, parts: AsyncIterator[Sequence[Any]], references: bytes) -> Any: ...
    async def import_parts(self, parts: AsyncIterator[Sequence[Any]], order: ImportedTo) -> tuple[str, bool]: ...


class ExportServicer(exports_pb2_grpc.ExportServiceServicer):
    def __init__(
        self,
        executions: Executions,
        workflows: Workflows,
        journals: JournalReplays,
        examiner: DefinitionExaminer,
        identifiers: Identifiers,
    ) -> None:
        self._executions = executions
        self._workflows = workflows
        self._journals = journals
        self._examiner = examiner
        self._identifiers = identifiers

    async def ExportExecution(
        self, request: pb.ExportExecutionRequest, context: RpcCall
    ) -> AsyncIterator[pb.ExportExecutionResponse]:
        execution = await self._started(request.execution_id)
        async for parts in self._journals.export(execution.id):
            if parts and parts[0].WhichOneof("part") == "header":
                header = parts[0].header
                if header.definition:  # of an import
                    yield pb.ExportExecutionResponse(parts=parts)
                    continue
                version = await self._workflows.get(caller().workspace, header.workflow, header.version)
                if version is None:
                    raise refusals.version_not_found(header.workflow, header.version)
                header.definition = version.definition
            yield pb.ExportExecutionResponse(parts=parts)

    async def ReplayExecution(self, request: pb.ReplayExecutionRequest, context: RpcCall) -> pb.ReplayExecutionResponse:
        execution = await self._started(request.execution_id)
        replay = await self._journals.replay(execution.id)
        if replay is None:
            raise refusals.execution_not_found(request.execution_id)
        return pb.ReplayExecutionResponse(replay=replay)

    async def ReplayExport(self, request_iterator: Any, context: RpcCall) -> pb.ReplayExportResponse:
        requests = aiter(request_iterator)
        first = await _beginning(requests)
        references = await self._examined(first.parts[0].header)
        bounded = _bounded(first, requests, with_outputs=False)
        return pb.ReplayExportResponse(replay=await self._journals.replay_parts(bounded, references))

    async def ImportExecution(self, request_iterator: Any, context: RpcCall) -> pb.ImportExecutionResponse:
        requests = aiter(request_iterator)
        first = await _beginning(requests)
        references = await self._examined(first.parts[0].header)
        workspace = caller().workspace
        order = ImportedTo(workspace, self._identifiers.mint(), first.request_id, references)
        bounded = _bounded(first, requests, with_outputs=True)
        execution_id, is_existing = await self._journals.import_parts(bounded, order)
        made = await self._executions.find(workspace, execution_id)
        return await translate.answer(pb.ImportExecutionResponse(existing=is_existing), made)

    async def _started(self, execution_id: str) -> ExecutionView:
        execution = await self._executions.find(caller().workspace, execution_id)
        if execution.record is None:
            raise refusals.execution_not_started(execution_id)
        return execution

    async def _examined(self, header: Any) -> bytes:
        """Put the canonical definition into the header, and return what its templates read."""
        try:
            source = header.definition.decode()
        except UnicodeDecodeError:
            raise Refusal("INVALID_EXPORT", "the definition in the header is no UTF-8") from None
        if not source:
            raise Refusal("INVALID_EXPORT", "the header has no definition")
        request = ValidateWorkflowRequest(source=source, source_format=Workflow.JSON)
        verdict, _, _ = await self._examiner.examine(request)
        if verdict.faults:
            raise refusals.invalid_definition(verdict.faults)
        header.definition = verdict.canonical
        return orjson.dumps(verdict.references)


async def _beginning(requests: AsyncIterator[Any]) -> Any:
    first = await anext(requests, None)
    if first is None or not first.parts or first.parts[0].WhichOneof("part") != "header":
        raise Refusal("INVALID_EXPORT", "the first part of an export is its header")
    return first


async def _bounded(first: Any, requests: AsyncIterator[Any], *, with_outputs: bool) -> AsyncIterator[Sequence[Any]]:
    """The parts, until they are too large together."""
    size_bytes, all_bytes, request = 0, 0, first
    while request is not None:
        others = [part for part in request.parts if part.WhichOneof("part") != "output"]
        size_bytes += sum(part.ByteSize() for part in others)
        all_bytes += request.ByteSize()
        if size_bytes > REPLAY_BYTES_MAX:
            raise Refusal("EXPORT_TOO_LARGE", f"an export has at most {REPLAY_BYTES_MAX} bytes without its outputs")
        if with_outputs and all_bytes > IMPORT_BYTES_MAX:
            raise Refusal("EXPORT_TOO_LARGE", f"an export that is imported has at most {IMPORT_BYTES_MAX} bytes")
        if kept := request.parts if with_outputs else others:
            yield kept
        request = await anext(requests, None)
