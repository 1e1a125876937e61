"""Gauges per workspace: queued executions, their age, slots in use. A workspace without any has no gauges."""

from __future__ import annotations

from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.chassis.telemetry.metrics import gauge
from services.dispatcher.app.ports import Housekeeping

# Scrapers come every 15 s, and each count walks the whole queue.
_EVERY_SECONDS: Final = 10.0
# With more workspaces than this, only the busiest have gauges.
_WORKSPACES_MAX: Final = 500

_depth = gauge("dispatcher_queue_depth", "Executions that wait for a slot.", ("workspace",))
_age = gauge("dispatcher_queue_age_seconds", "Age of the oldest execution that waits for a slot.", ("workspace",))
_running = gauge("dispatcher_running", "Slots in use.", ("workspace",))
_lease_age = gauge("dispatcher_lease_age_seconds", "Age of the oldest execution lease.", ("workspace",))
_GAUGES: Final = (_depth, _age, _running, _lease_age)


class Measures:
    def __init__(self, *, housekeeping: Housekeeping, clock: Clock) -> None:
        self._housekeeping = housekeeping
        self._clock = clock
        self._shown: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except DependencyUnavailable:
                pass  # the gauges keep their values
            await self._clock.sleep(_EVERY_SECONDS)

    async def run_once(self) -> None:
        measures = sorted(await self._housekeeping.measure(), key=lambda each: -(each.waiting + each.going))
        shown = {each.workspace for each in measures[:_WORKSPACES_MAX]}
        for workspace in self._shown - shown:
            for metric in _GAUGES:
                metric.remove(workspace)
        for each in measures[:_WORKSPACES_MAX]:
            _depth.labels(each.workspace).set(each.waiting)
            _age.labels(each.workspace).set(each.age_seconds)
            _running.labels(each.workspace).set(each.going)
            _lease_age.labels(each.workspace).set(each.lease_age_seconds)
        self._shown = shown
