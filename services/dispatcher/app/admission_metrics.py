"""Metrics and log lines of admission.

There is no counter per workspace, because it would live as long as the process. Gauges per workspace are removed when
the workspace has no work (app/measures.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import COUNT_BUCKETS, counter, histogram
from services.chassis.telemetry.tracing import Sampler
from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.core.items import Claim, LateReason, LeaseReport, WorkspaceView

log = logger("services.dispatcher")

_US: Final = 1_000_000
# At most this number of log lines of each event is written in a second. The next line tells how many were left out.
LINES_PER_SECOND: Final = 40.0
_processed = counter("dispatcher_items_processed_total", "Executions granted to a coordinator.")
_at_capacity = counter(
    "dispatcher_released_at_capacity_total", "Times a workspace came to its limit with work waiting."
)
_failures = counter("dispatcher_dispatch_failures_total", "Executions handed back because they could not start.")
_dead_letters = counter("dispatcher_dead_letters_total", "Executions that were given up before they started.")
_late = counter("dispatcher_late_reports_total", "Reports refused because another holder had the lease.", ("reason",))
_latency = histogram("dispatcher_dispatch_latency_seconds", "Time from the enqueue of an execution to its grant.")
_batch_seconds = histogram("dispatcher_turn_seconds", "Duration of the commit of a batch.")
_batch_items = histogram("dispatcher_turn_items", "Items in a batch.", buckets=COUNT_BUCKETS)


class _Lines:
    """The log lines of one event, at a limited rate."""

    def __init__(self, event: str, monotonic: Callable[[], float]) -> None:
        self._event = event
        self._sampler = Sampler(LINES_PER_SECOND, monotonic=monotonic)
        self._left_out = 0

    def has_room(self) -> bool:
        """Ask this first, so that a line that is left out builds no fields."""
        if self._sampler.take():
            return True
        self._left_out += 1
        return False

    def say(self, **fields: object) -> None:
        if self._left_out:
            fields["left_out_before"], self._left_out = self._left_out, 0
        log.info(self._event, **fields)


class AdmissionMetrics:
    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        # Each event has its own rate, so that a burst of one leaves room for the other.
        self._dispatching = _Lines("dispatching item", monotonic)
        self._dispatched = _Lines("dispatched execution", monotonic)

    def committed(self, batch: AdmissionBatch, seconds: float) -> None:
        _batch_seconds.observe(seconds)
        _batch_items.observe(batch.items)

    def granted(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        _processed.inc(len(claims))
        for claim in claims:
            _latency.observe((claim.granted_us - claim.enqueue_us) / _US)
            if self._dispatching.has_room():
                self._dispatching.say(execution_id=claim.execution_id, workspace=claim.workspace, epoch=claim.epoch)

    def dispatched(self, leases: Sequence[tuple[str, int]], holder: str) -> None:
        """The coordinator has acknowledged these grants."""
        for execution_id, epoch in leases:
            if self._dispatched.has_room():
                self._dispatched.say(execution_id=execution_id, epoch=epoch, holder=holder)

    def at_capacity(self, view: WorkspaceView) -> None:
        _at_capacity.inc()
        active = view.executions_max - view.free + view.taken
        log.info("workspace at capacity", workspace=view.workspace, active=active, limit=view.executions_max)

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
        log.error("failed to start", execution_id=execution_id, reason=reason, error=message, attempts=attempts)

    def dead_letter(self, execution_id: str, workspace: str, reason: str) -> None:
        _dead_letters.inc()
        log.error("error processing item", execution_id=execution_id, workspace=workspace, reason=reason)
