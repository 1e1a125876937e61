"""grpc.health.v1: a service is SERVING only while its checks hold.

A process is up before and after the time in which it can do its work, and a load balancer must know the difference.
`follow` asks a probe for ever and sets its answer. `set` sets a state that is known at once. The empty name stands for
the whole process, which is serving while every service is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.chassis.grpc.errors import Refusal
from services.chassis.telemetry.logs import logger

log = logger(__name__)

SERVICE_NAME = "grpc.health.v1.Health"
_Status = health_pb2.HealthCheckResponse


class HealthBoard(health_pb2_grpc.HealthServicer):
    def __init__(self) -> None:
        self._serving: dict[str, bool] = {}
        self._changed: set[asyncio.Event] = set()
        self._is_closing = False

    def announce(self, services: Iterable[str]) -> None:
        """Add services. One that was set before keeps its state."""
        for service in services:
            self._serving.setdefault(service, True)
        self._tell()

    def set(self, service: str, is_serving: bool) -> None:
        """Set one service. "" sets all of them."""
        names = list(self._serving) if service == "" else [service]
        if any(self._serving.get(name) is not is_serving for name in names):
            self._serving.update(dict.fromkeys(names, is_serving))
            log.info("health changed", health_of=service or "all", serving=is_serving)
            self._tell()

    def close(self) -> None:
        """Set NOT_SERVING for good, because the process ends."""
        self._is_closing = True
        self._tell()

    async def follow(
        self, probe: Callable[[], Awaitable[bool]], *, services: Iterable[str] = ("",), every_seconds: float = 1.0
    ) -> None:
        """Set the answer of the probe for these services, again and again. A probe that raises means False."""
        names = tuple(services)
        while True:
            try:
                holds = await probe()
            except Exception as failure:  # noqa: BLE001 - any failure means False
                log.warning("a health probe failed", error=str(failure))
                holds = False
            for name in names:
                self.set(name, holds)
            await asyncio.sleep(every_seconds)

    def status(self, service: str) -> int | None:
        """The state as it goes on the wire. None: this service is not served here."""
        if service != "" and service not in self._serving:
            return None
        holds = all(self._serving.values()) if service == "" else self._serving[service]
        return _Status.SERVING if holds and not self._is_closing else _Status.NOT_SERVING

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        status = self.status(request.service)
        if status is None:
            raise Refusal("SERVICE_NOT_FOUND", "this process does not serve that service")
        return _Status(status=status)

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        changed, last = asyncio.Event(), None
        self._changed.add(changed)
        try:
            while True:
                changed.clear()
                status = self.status(request.service)
                if status is None:
                    status = _Status.SERVICE_UNKNOWN
                if status != last:
                    await context.write(_Status(status=status))
                    last = status
                await changed.wait()
        finally:
            self._changed.discard(changed)

    async def List(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        names = ["", *sorted(self._serving)]
        return health_pb2.HealthListResponse(  # type: ignore[attr-defined] # newer than its stubs
            statuses={name: _Status(status=self.status(name)) for name in names}
        )
