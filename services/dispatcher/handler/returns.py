"""What comes back into the queue outside of a turn: grants refused or withdrawn, releases, leases of ended instances.

Each is kept until its commit; afterwards the lane it belongs to is looked at again at once. A lease that has passed to
somebody else meanwhile is left alone by the statement itself, so nothing here has to be in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from services.chassis.backoff import Backoff
from services.chassis.batcher import Level
from services.chassis.clock import Clock
from services.chassis.errors import DependencyUnavailable
from services.chassis.logs import logger
from services.dispatcher.core.items import LateReason, LeaseReport, Released, Returned, State
from services.dispatcher.core.releases import Fate
from services.dispatcher.handler.ports import Holder
from services.dispatcher.handler.tally import Tally

log = logger(__name__)
_BATCH: Final = 500


class Leases(Protocol):
    async def hand_back(self, leases: Sequence[tuple[str, int]]) -> Sequence[Returned]: ...

    async def end(self, instances: Sequence[str]) -> Sequence[Returned]: ...

    async def fail(self, report: Released) -> tuple[str, Fate] | None: ...

    async def reasons(self, reports: Sequence[LeaseReport]) -> Sequence[LateReason | None]: ...


class Wakes(Protocol):
    """The turns."""

    def work_in(self, workspace: str) -> None: ...

    def ending_waits(self) -> None: ...


class ToldReleased(NamedTuple):
    report_id: str
    report: Released
    holder: Holder


class Returns:
    def __init__(self, *, leases: Leases, turns: Wakes, tally: Tally, clock: Clock) -> None:
        self._leases = leases
        self._turns = turns
        self._tally = tally
        self._clock = clock
        self._handed_back: deque[tuple[str, int]] = deque()
        self._released: deque[ToldReleased] = deque()
        self._ended: dict[str, None] = {}
        self._wake = Level()

    def hand_back(self, leases: Iterable[tuple[str, int]]) -> None:
        """Nobody has these (execution and epoch), for certain."""
        self._handed_back.extend(leases)
        self._wake.set()

    def released(self, told: Iterable[ToldReleased]) -> None:
        self._released.extend(told)
        self._wake.set()

    def ended(self, instances: Iterable[str]) -> None:
        """All that these instances hold is free."""
        self._ended.update(dict.fromkeys(instances))
        self._wake.set()

    async def idle(self) -> None:
        """Until all that came back is committed."""
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
        """Until nothing is left. Raises DependencyUnavailable with what is not committed kept."""
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
            log.info(
                "took back the executions of ended coordinators",
                instances=instances,
                executions=len(returned),
            )
        self._look_again(returned)

    async def _return(self) -> None:
        batch = [self._handed_back[at] for at in range(min(_BATCH, len(self._handed_back)))]
        returned = await self._leases.hand_back(batch)
        for _ in batch:
            self._handed_back.popleft()
        self._look_again(returned)

    async def _release(self) -> None:
        batch = [self._released[at] for at in range(min(_BATCH, len(self._released)))]
        committed = {
            told.report for told in batch if _is_failure(told.report) and await self._fail(told.report)
        }
        plain = [told.report for told in batch if not _is_failure(told.report)]
        if plain:
            returned = await self._leases.hand_back([(report.execution_id, report.epoch) for report in plain])
            self._look_again(returned)
            ids = {row.execution_id for row in returned}
            committed.update(report for report in plain if report.execution_id in ids)
        late = [told for told in batch if told.report not in committed]
        reasons = await self._leases.reasons([told.report for told in late]) if late else ()
        for _ in batch:
            self._released.popleft()
        for told in batch:
            if told.report in committed:
                told.holder.acknowledge([told.report_id])
        for told, reason in zip(late, reasons, strict=True):
            if reason is None:
                told.holder.acknowledge([told.report_id])
            else:
                told.holder.refuse(told.report_id, reason)
                self._tally.late(told.report, told.holder.instance_id, reason)

    async def _fail(self, report: Released) -> bool:
        failed = await self._leases.fail(report)
        if failed is None:
            return False
        workspace, fate = failed
        self._tally.dispatch_failed(report.execution_id, report.reason, report.message, fate.attempts)
        if fate.state is State.FAILED:
            self._tally.dead_letter(report.execution_id, workspace, fate.failure_reason)
        # Its slot is free for others.
        self._turns.work_in(workspace)
        return True

    def _look_again(self, returned: Sequence[Returned]) -> None:
        for row in returned:
            if row.is_ends_only:
                self._turns.ending_waits()
            else:
                self._turns.work_in(row.workspace)


def _is_failure(report: Released) -> bool:
    return report.is_failed or report.is_permanent
