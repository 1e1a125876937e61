"""What operators see of admission: counters, and the log lines that people search for.

Per workspace only gauges, which are removed with the work (loops/measures.py): a counter per workspace would stay for
as long as the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from services.chassis.logs import logger
from services.chassis.metrics import COUNT_BUCKETS, counter, histogram
from services.chassis.telemetry import Sampler
from services.dispatcher.core.items import LaneView, LateReason, LeaseReport, Place
from services.dispatcher.core.turn import Turn

log = logger("services.dispatcher")

_US: Final = 1_000_000
GRANT_LINES_PER_SECOND: Final = 40.0
_processed = counter("dispatcher_items_processed_total", "Executions granted to a coordinator.")
_at_capacity = counter(
    "dispatcher_released_at_capacity_total", "Times a workspace came to its limit with work waiting."
)
_failures = counter(
    "dispatcher_dispatch_failures_total", "Executions handed back because they could not start."
)
_dead_letters = counter("dispatcher_dead_letters_total", "Executions that were given up before they started.")
_late = counter(
    "dispatcher_late_reports_total", "Reports refused because the lease was another's.", ("reason",)
)
_latency = histogram("dispatcher_dispatch_latency_seconds", "From the enqueue of an execution to its grant.")
_turn_seconds = histogram("dispatcher_turn_seconds", "How long the commit of a turn took.")
_turn_items = histogram("dispatcher_turn_items", "Items in a turn.", buckets=COUNT_BUCKETS)


class Tally:
    def __init__(self, waits: Callable[[str], None] | None = None) -> None:
        """`waits` is told each workspace in which a turn left something: word for the other replicas."""
        self._waits = waits
        self._lines = Sampler(GRANT_LINES_PER_SECOND)

    def turn(self, turn: Turn, seconds: float) -> None:
        _turn_seconds.observe(seconds)
        _turn_items.observe(turn.items)

    def granted(self, places: Sequence[Place]) -> None:
        if not places:
            return
        _processed.inc(len(places))
        for place in places:
            _latency.observe((place.granted_us - place.enqueue_us) / _US)
            # A line each while that can be read; the counter has them all.
            if self._lines.take():
                log.info(
                    "dispatching item",
                    execution_id=place.execution_id,
                    workspace=place.workspace,
                    epoch=place.epoch,
                )

    def dispatched(self, leases: Sequence[tuple[str, int]], holder: str) -> None:
        """A coordinator has taken them."""
        for execution_id, epoch in leases:
            if not self._lines.take():
                return
            log.info("dispatched execution", execution_id=execution_id, epoch=epoch, holder=holder)

    def at_capacity(self, view: LaneView) -> None:
        _at_capacity.inc()
        active = view.executions_max - view.free + view.taken
        log.info("workspace at capacity", workspace=view.workspace, active=active, limit=view.executions_max)

    def waits(self, workspace: str) -> None:
        if self._waits is not None:
            self._waits(workspace)

    def late(self, report: LeaseReport, instance_id: str, reason: LateReason) -> None:
        _late.labels(reason).inc()
        log.warning(
            "late report refused",
            execution_id=report.execution_id,
            epoch=report.epoch,
            report=type(report).__name__,
            holder_instance=instance_id,
            reason=reason.value,
        )

    def dispatch_failed(self, execution_id: str, reason: str, message: str, attempts: int) -> None:
        _failures.inc()
        log.error(
            "failed to start", execution_id=execution_id, reason=reason, error=message, attempts=attempts
        )

    def dead_letter(self, execution_id: str, workspace: str, reason: str) -> None:
        _dead_letters.inc()
        log.error("error processing item", execution_id=execution_id, workspace=workspace, reason=reason)
