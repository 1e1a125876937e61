"""ForkExecution: a start that takes over what another execution, its origin, has done well.

Api finds the origin, the version and the input, and queues the fork like any start. The order names the origin and its
newest event. What is taken over is found by the coordinator that is granted the fork
(services/coordinator/app/fork_origins.py).

Order matters: a repeat is recognised before anything else, because the origin may be gone or the workflow archived by
then. Of two equal calls at the same time, the queue makes one.
"""

from __future__ import annotations

import orjson

from services.api.app import refusals
from services.api.app.executions import Executions
from services.api.app.ports import ExecutionView, Workflows
from services.api.app.starts import INPUT_BYTES_MAX, ForkOf, PreparedStart, StartCommand, Starter
from services.api.core.forking import taken_over_seq
from services.api.rpc import translate
from services.api.rpc.structs import to_dict
from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import caller
from services.chassis.process.crash import crash_point
from services.chassis.telemetry.tracing import TraceContext
from windlass.api.v1 import executions_pb2 as pb


class Forking:
    def __init__(self, starter: Starter, executions: Executions, workflows: Workflows) -> None:
        self._starter = starter
        self._executions = executions
        self._workflows = workflows

    async def fork(self, request: pb.ForkExecutionRequest, trace: TraceContext) -> pb.ForkExecutionResponse:
        identity, asked = caller(), await _asked(request)
        existing = await self._existing(request, asked)
        if existing is None:
            origin = await self._executions.find_for_command(identity.workspace, request.execution_id)
            start = await self._prepare(origin, request, asked)
            seq = taken_over_seq(
                origin.state, translate.journal_seq(origin), request.from_node, has_new_input=asked.input is not None
            )
            item = translate.fork_item(start, seq, identity.title, trace.header())
            crash_point("api.fork.before_enqueue")
            started = await self._starter.submit(start, item)
            crash_point("api.fork.before_answer")
            if started == start.execution_id:
                return await translate.answer(pb.ForkExecutionResponse(), translate.queued_view(item))
            existing = started
        found = await self._executions.find(identity.workspace, existing)
        return await translate.answer(pb.ForkExecutionResponse(existing=True), found)

    async def _existing(self, request: pb.ForkExecutionRequest, asked: ForkOf) -> str | None:
        """The fork that an earlier call with this request id has made."""
        if not request.request_id:
            return None
        command = StartCommand("", 0, {}, request.request_id, {}, 0, 0, asked)
        (known,) = await self._starter.recall(caller().workspace, [command])
        if isinstance(known, Refusal):
            raise known
        return known

    async def _prepare(self, origin: ExecutionView, request: pb.ForkExecutionRequest, asked: ForkOf) -> PreparedStart:
        shown, content = translate.listed(origin), translate.input_of(origin)
        command = StartCommand(
            shown.workflow,
            request.version or shown.version,
            orjson.loads(content or b"{}") if asked.input is None else asked.input,
            request.request_id,
            shown.labels,
            shown.priority,
            timeout=0,
            fork=asked,
        )
        start = await self._starter.prepare(caller().workspace, command)
        if request.from_node:
            await self._check_node(start, request.from_node)
        return start

    async def _check_node(self, start: PreparedStart, from_node: str) -> None:
        workflow, version = start.command.workflow, start.startable.version
        found = await self._workflows.get(start.workspace, workflow, version)
        nodes = orjson.loads(found.definition)["nodes"] if found is not None else ()
        if all(node["id"] != from_node for node in nodes):
            raise refusals.node_not_in_version(workflow, version, from_node)


async def _asked(request: pb.ForkExecutionRequest) -> ForkOf:
    given = await to_dict(request.input, "input", INPUT_BYTES_MAX) if request.HasField("input") else None
    return ForkOf(request.execution_id, request.from_node, request.version, given)
