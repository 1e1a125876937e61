"""CircuitService: the circuits of a workspace for api. Any replica answers; they share the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.timestamps import micros_of, put_micros
from services.chassis.process.clock import Clock
from services.coordinator.app.ports import CircuitsFull, ShownCircuits
from services.coordinator.core.circuits import SLOTS, Circuit, CircuitPolicy, CircuitState, waiting_at
from services.coordinator.core.values import Instant
from services.coordinator.rpc.large_pages import limit_of
from windlass.api.v1 import circuits_pb2 as api
from windlass.coordinator.v1 import circuits_pb2 as pb
from windlass.coordinator.v1.circuits_pb2_grpc import CircuitServiceServicer

_STATES: Final[Mapping[CircuitState, api.Circuit.State.ValueType]] = {
    CircuitState.CLOSED: api.Circuit.CLOSED,
    CircuitState.OPEN: api.Circuit.OPEN,
    CircuitState.HALF_OPEN: api.Circuit.HALF_OPEN,
}
_NAMES: Final = {0: ""} | {number: state.value for state, number in _STATES.items()}


class CircuitStateServicer(CircuitServiceServicer):
    def __init__(self, circuits: ShownCircuits, policy: CircuitPolicy, clock: Clock) -> None:
        self._circuits = circuits
        self._policy = policy
        self._clock = clock

    async def ListCircuits(self, request: pb.ListCircuitsRequest, context: Any) -> pb.ListCircuitsResponse:
        state = _NAMES.get(request.state, "")
        found = await self._circuits.page(
            request.workspace, state, request.target_prefix, request.after_target, limit_of(request.limit)
        )
        return pb.ListCircuitsResponse(circuits=[self._shown(each) for each in found])

    async def GetCircuit(self, request: pb.GetCircuitRequest, context: Any) -> pb.GetCircuitResponse:
        found = await self._circuits.get(request.workspace, request.target)
        return pb.GetCircuitResponse(circuit=None if found is None else self._shown(found))

    async def ResetCircuit(self, request: pb.ResetCircuitRequest, context: Any) -> pb.ResetCircuitResponse:
        found = await self._circuits.reset(request.workspace, request.target)
        return pb.ResetCircuitResponse(circuit=None if found is None else self._shown(found))

    async def OpenCircuit(self, request: pb.OpenCircuitRequest, context: Any) -> pb.OpenCircuitResponse:
        try:
            found = await self._circuits.open(request.workspace, request.target, micros_of(request.until))
        except CircuitsFull:
            raise Refusal("CIRCUITS_EXCEEDED", "the workspace has as many circuits as it may have") from None
        return pb.OpenCircuitResponse(circuit=self._shown(found))

    def _shown(self, circuit: Circuit) -> api.Circuit:
        # The clock of this process decides nothing here: only counts that may be too old are left out.
        now = self._clock.epoch_ns() // 1_000
        window = circuit.window.at(now // self._policy.slot)
        shown = api.Circuit(
            target=circuit.target,
            state=_STATES[circuit.state],
            failure_count=sum(window.failures),
            success_count=sum(window.answers),
            waiting=waiting_at(circuit, now),
        )
        times: dict[str, Instant] = {
            "window_start_time": (window.slot - SLOTS + 1) * self._policy.slot,
            "last_failure_time": circuit.last_failure_time,
            "open_time": circuit.open_time,
            "next_retry_time": circuit.retry_time,
        }
        for name, time in times.items():
            if time > 0:
                put_micros(getattr(shown, name), time)
        return shown
