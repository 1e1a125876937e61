"""RunnerSessions: where runners attach."""

from __future__ import annotations

from typing import Any

from services.chassis.session.registry import SessionRegistry
from windlass.coordinator.v1.sessions_pb2_grpc import RunnerSessionsServicer


class RunnerSessionsService(RunnerSessionsServicer):
    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry

    async def Session(  # type: ignore[override] # reads and writes by the context
        self, request_iterator: Any, context: Any
    ) -> None:
        await self._registry.serve(context)
