"""Returns executions to the queue outside of a batch: refused grants, releases, and leases of ended instances.

Each is kept until it is committed; then the admission loop looks at its workspace again. The statements leave a lease
alone that another holder has by now, so the order does not matter here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.ports import Leases, PendingRelease, Wakes
from services.dispatcher.app.report_answers import acknowledge, answer_late
from services.dispatcher.core.items import LeaseReleased, Returned, State

log = logger(__name__)
_BATCH: Final = 500


class Returns:
    def __init__(self, *, leases: Leases, admission_loop: Wakes, metrics: AdmissionMetrics, clock: Clock) -> None:
        self._leases = leases
        self._admission_loop = admission_loop
        self._metrics = metrics
        self._clock = clock
        self._handed_back: deque[tuple[str, int]] = deque()
        self._released: deque[PendingRelease] = deque()
        self._ended: dict[str, None] = {}
        self._wake = Level()

    def hand_back(self, leases: Iterable[tuple[str, int]]) -> None:
        """It is certain that no holder has these leases (execution and epoch)."""
        self._handed_back.extend(leases)
        self._wake.set()

    def released(self, pending: Iterable[PendingRelease]) -> None:
        self._released.extend(pending)
        self._wake.set()

    def ended(self, instances: Iterable[str]) -> None:
        """The leases of these instances are free."""
        self._ended.update(dict.fromkeys(instances))
        self._wake.set()

    async def idle(self) -> None:
        """Wait until everything is committed."""
        while self._ended or self._handed_back or self._released:
            await self._clock.sleep(0.01)

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._wake.wait()
            try:
                await self.run_once()
                backoff.reset()
            except DependencyUnavailable as failure:
                log.warning("returns wait for the database", error=str(failure))
                self._wake.set()
                await self._clock.sleep(backoff.next())

    async def run_once(self) -> None:
        """Commit until nothing is left. Raises DependencyUnavailable; the uncommitted rest is kept."""
        while self._ended or self._handed_back or self._released:
            if self._ended:
                await self._end()
            if self._handed_back:
                await self._return()
            if self._released:
                await self._release()

    async def _end(self) -> None:
        instances = list(self._ended)
        returned = await self._leases.end(instances)
        for instance in instances:
            del self._ended[instance]
        if returned:
            log.info("took back the executions of ended coordinators", instances=instances, executions=len(returned))
        self._look_again(returned)

    async def _return(self) -> None:
        batch = list(islice(self._handed_back, _BATCH))
        returned = await self._leases.hand_back(batch)
        for _ in batch:
            self._handed_back.popleft()
        self._look_again(returned)

    async def _release(self) -> None:
        batch = list(islice(self._released, _BATCH))
        committed = {
            pending.report for pending in batch if _is_failure(pending.report) and await self._fail(pending.report)
        }
        plain = [pending.report for pending in batch if not _is_failure(pending.report)]
        if plain:
            returned = await self._leases.hand_back([(report.execution_id, report.epoch) for report in plain])
            self._look_again(returned)
            ids = {row.execution_id for row in returned}
            committed.update(report for report in plain if report.execution_id in ids)
        late = [pending for pending in batch if pending.report not in committed]
        reasons = await self._leases.reasons([pending.report for pending in late]) if late else ()
        for _ in batch:
            self._released.popleft()
        acknowledge([pending for pending in batch if pending.report in committed])
        answer_late(late, reasons, self._metrics)

    async def _fail(self, report: LeaseReleased) -> bool:
        failed = await self._leases.fail(report)
        if failed is None:
            return False
        workspace, fate = failed
        self._metrics.dispatch_failed(report.execution_id, report.reason, report.message, fate.attempts)
        if fate.state is State.FAILED:
            self._metrics.dead_letter(report.execution_id, workspace, fate.failure_reason)
        self._admission_loop.work_in(workspace)
        return True

    def _look_again(self, returned: Sequence[Returned]) -> None:
        for row in returned:
            self._admission_loop.work_in(row.workspace, is_ends_only=row.is_ends_only)


def _is_failure(report: LeaseReleased) -> bool:
    return report.is_failed or report.is_permanent
