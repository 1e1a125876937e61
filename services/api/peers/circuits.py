"""The circuits of a workspace, at any coordinator: all of them share the rows.

A repeated change is harmless: a circuit is closed once, and opened once until the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.timestamp_pb2 import Timestamp

from services.api.peers.replicas import Replicas
from windlass.api.v1.circuits_pb2 import Circuit
from windlass.coordinator.v1 import circuits_pb2 as pb
from windlass.coordinator.v1.circuits_pb2_grpc import CircuitServiceStub


class CoordinatorCircuits:
    def __init__(self, peers: Replicas) -> None:
        self._peers = peers

    async def page(self, request: pb.ListCircuitsRequest) -> Sequence[Circuit]:
        response = await self._peers.call(lambda channel: CircuitServiceStub(channel).ListCircuits, request)
        return response.circuits

    async def get(self, workspace: str, target: str) -> Circuit | None:
        request = pb.GetCircuitRequest(workspace=workspace, target=target)
        response = await self._peers.call(lambda channel: CircuitServiceStub(channel).GetCircuit, request)
        return response.circuit if response.HasField("circuit") else None

    async def reset(self, workspace: str, target: str) -> Circuit | None:
        request = pb.ResetCircuitRequest(workspace=workspace, target=target)
        response = await self._peers.call(lambda channel: CircuitServiceStub(channel).ResetCircuit, request)
        return response.circuit if response.HasField("circuit") else None

    async def open(self, workspace: str, target: str, until: Timestamp) -> Circuit:
        request = pb.OpenCircuitRequest(workspace=workspace, target=target, until=until)
        response = await self._peers.call(lambda channel: CircuitServiceStub(channel).OpenCircuit, request)
        return response.circuit
