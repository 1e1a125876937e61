"""ChildService: starts the executions that nodes of other executions ask for."""

from __future__ import annotations

import orjson

from services.api.app import refusals
from services.api.app.starts import StartCommand, Starter
from services.api.rpc import translate
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.guard import RpcCall
from services.chassis.process.crash import crash_point
from windlass.catalog.v1 import children_pb2 as pb
from windlass.catalog.v1 import children_pb2_grpc
from windlass.types.v1.start_pb2 import StartOrder


class ChildServicer(children_pb2_grpc.ChildServiceServicer):
    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    async def StartChild(self, request: pb.StartChildRequest, context: RpcCall) -> pb.StartChildResponse:
        order = request.order
        try:
            started = await self._start(order)
        except Refusal as refusal:
            # An earlier call may have started it, before the workflow was changed or archived.
            (known,) = await self._starter.recall(order.workspace, [_command(order)])
            if known != order.execution_id:
                raise _meant(refusal, order) from None
        else:
            crash_point("api.start_child.before_answer")
            if started != order.execution_id:
                raise refusals.request_id_reused(order.request_id, started)
        return pb.StartChildResponse()

    async def _start(self, order: StartOrder) -> str:
        start = await self._starter.prepare(order.workspace, _command(order))
        start = start._replace(execution_id=order.execution_id)
        crash_point("api.start_child.before_enqueue")
        return await self._starter.submit(start, translate.child_item(start, order))


def _command(order: StartOrder) -> StartCommand:
    # The deadline is no part of what makes two starts the same, because it is a time and no span.
    return StartCommand(
        order.workflow, order.version, orjson.loads(order.input), order.request_id, {}, order.priority, timeout=0
    )


def _meant(refusal: Refusal, order: StartOrder) -> Refusal:
    return refusals.workspace_deleted(order.workspace) if refusal.reason == "KEY_INVALID" else refusal
