"""Gauges per workspace: what waits, how long, what is going. They go with the work, so that none pile up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.clock import Clock
from services.chassis.telemetry.metrics import gauge
from services.dispatcher.core.items import Measure

# One sample of each is enough for a scraper that comes every 15 s; counting walks all that waits.
_EVERY_SECONDS: Final = 10.0
# Beyond this the busiest are shown.
_WORKSPACES_MAX: Final = 500

_depth = gauge("dispatcher_queue_depth", "Executions that wait for a slot.", ("workspace",))
_age = gauge("dispatcher_queue_age_seconds", "How long the oldest of them has waited.", ("workspace",))
_running = gauge("dispatcher_running", "Slots in use.", ("workspace",))
_lease_age = gauge("dispatcher_lease_age_seconds", "Age of the oldest execution lease.", ("workspace",))
_GAUGES: Final = (_depth, _age, _running, _lease_age)


class MeasureReads(Protocol):
    async def measure(self) -> Sequence[Measure]: ...


class Measures:
    def __init__(self, *, housekeeping: MeasureReads, clock: Clock) -> None:
        self._housekeeping = housekeeping
        self._clock = clock
        self._shown: set[str] = set()

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except DependencyUnavailable:
                # The gauges stay as they were: nothing is known.
                pass
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
