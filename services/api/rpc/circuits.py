"""CircuitService: reads the circuits of the caller's workspace from the coordinators, and changes them for people.

A change is on record before it is asked for, because it takes effect in another service: a change without a record
would be worse than a record of a change that failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from google.protobuf.timestamp_pb2 import Timestamp

from services.api.app import refusals
from services.api.app.ports import Audit
from services.api.rpc.pages import Page
from services.chassis.grpc.guard import RpcCall
from services.chassis.grpc.timestamps import micros_of
from services.chassis.identity.callers import caller
from services.chassis.process.clock import Clock
from windlass.api.v1 import circuits_pb2 as pb
from windlass.api.v1 import circuits_pb2_grpc
from windlass.coordinator.v1 import circuits_pb2

# Nobody decides today about the year after next.
_OPEN_MAX: Final = 366 * 86_400 * 1_000_000


class SharedCircuits(Protocol):
    """Any coordinator."""

    async def page(self, request: circuits_pb2.ListCircuitsRequest) -> Sequence[pb.Circuit]: ...

    async def get(self, workspace: str, target: str) -> pb.Circuit | None: ...

    async def reset(self, workspace: str, target: str) -> pb.Circuit | None: ...

    async def open(self, workspace: str, target: str, until: Timestamp) -> pb.Circuit: ...


class CircuitServicer(circuits_pb2_grpc.CircuitServiceServicer):
    def __init__(self, circuits: SharedCircuits, audit: Audit, clock: Clock) -> None:
        self._circuits = circuits
        self._audit = audit
        self._clock = clock

    async def ListCircuits(self, request: pb.ListCircuitsRequest, context: RpcCall) -> pb.ListCircuitsResponse:
        workspace = caller().workspace
        page = Page(request, "circuits", workspace, str(request.state), request.target_prefix)
        found = await self._circuits.page(
            circuits_pb2.ListCircuitsRequest(
                workspace=workspace,
                state=request.state,
                target_prefix=request.target_prefix,
                after_target=page.after,
                limit=page.size + 1,
            )
        )
        shown, token = page.cut(found, lambda circuit: circuit.target, lambda circuit: circuit)
        return pb.ListCircuitsResponse(circuits=shown, next_page_token=token)

    async def GetCircuit(self, request: pb.GetCircuitRequest, context: RpcCall) -> pb.GetCircuitResponse:
        return pb.GetCircuitResponse(circuit=await self._found(request.target))

    async def ResetCircuit(self, request: pb.ResetCircuitRequest, context: RpcCall) -> pb.ResetCircuitResponse:
        found = await self._found(request.target)
        if found.state != pb.Circuit.CLOSED or found.failure_count:
            await self._audit.add(caller(), "ResetCircuit", request.target, {})
            # It may have been forgotten meanwhile, which has the same effect.
            found = await self._circuits.reset(caller().workspace, request.target) or found
        return pb.ResetCircuitResponse(circuit=found)

    async def OpenCircuit(self, request: pb.OpenCircuitRequest, context: RpcCall) -> pb.OpenCircuitResponse:
        workspace, until = caller().workspace, micros_of(request.until)
        if not 0 < until - self._clock.epoch_ns() // 1_000 <= _OPEN_MAX:
            raise refusals.invalid_field("until", "OUT_OF_RANGE", "must be in the future, and at most a year away")
        found = await self._circuits.get(workspace, request.target)
        if found is None or found.state != pb.Circuit.OPEN or micros_of(found.next_retry_time) != until:
            await self._audit.add(caller(), "OpenCircuit", request.target, {"until": request.until.ToJsonString()})
            found = await self._circuits.open(workspace, request.target, request.until)
        return pb.OpenCircuitResponse(circuit=found)

    async def _found(self, target: str) -> pb.Circuit:
        found = await self._circuits.get(caller().workspace, target)
        if found is None:
            raise refusals.circuit_not_found(target)
        return found
