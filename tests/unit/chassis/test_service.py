"""The order in which a service starts and ends, whatever its wiring joins."""

import asyncio
from typing import Any

import pytest

from services.chassis.grpc.guard import Guard
from services.chassis.grpc.server import GrpcServer
from services.chassis.process import service
from services.chassis.process.config import ProcessSettings
from services.chassis.process.lifecycle import Loops, Process, Steps
from tests.support.running_services import started

SETTINGS = ProcessSettings()


class Shop:
    """A service that notes what it is asked to do."""

    def __init__(self, notes: list[str], *, has_goods: bool = True) -> None:
        self.name = "shop-0"
        self.server: GrpcServer = ShopServer(notes)
        self._notes = notes
        self._has_goods = has_goods

    async def prepare(self) -> None:
        self._notes.append("prepare")
        if not self._has_goods:
            raise LookupError("there is nothing to sell")

    def loops(self) -> Loops:
        return (("sell", asyncio.Event().wait),)

    def drain_steps(self) -> Steps:
        return (self._step("serve who is here"), self._step("count the till"))

    def close_steps(self) -> Steps:
        return (self._step("lights"), self._step("door"))

    def _step(self, name: str) -> tuple[str, Any]:
        async def note() -> None:
            self._notes.append(name)

        return name, note


class ShopServer(GrpcServer):
    def __init__(self, notes: list[str]) -> None:
        super().__init__("127.0.0.1:0", guard=Guard({}))
        self._notes = notes

    async def start(self) -> int:  # type: ignore[override]
        self._notes.append("server starts")
        return await super().start()

    async def stop(self, grace: float | None) -> None:
        self._notes.append("server stops")
        await super().stop(grace)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    async def flush() -> None:
        made.append("spans")

    monkeypatch.setattr(service, "flush_tracing", flush)
    return made


async def test_a_service_drains_then_stops_its_server_then_closes_and_flushes_its_spans_last(notes: list[str]) -> None:
    running = await started("shop", SETTINGS, lambda _: Shop(notes))
    assert notes == ["prepare", "server starts"]
    notes.clear()
    await running.stop()
    assert notes == ["serve who is here", "count the till", "server stops", "lights", "door", "spans"]


async def test_a_service_that_cannot_be_prepared_closes_its_parts_and_never_serves(notes: list[str]) -> None:
    process = Process("shop")

    async def wire(process: Process) -> None:
        await service.start(process, SETTINGS, lambda _: Shop(notes, has_goods=False))

    assert await process.run(wire) == 1
    assert notes == ["prepare", "server stops", "lights", "door", "spans"]
