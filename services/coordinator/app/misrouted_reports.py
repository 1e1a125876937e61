"""Forwards reports of runs whose execution is not owned here to the mailbox of the execution.

A report is acknowledged only when the dispatcher has it durably. A report for a final execution is refused, unless its
run has a reported outcome: then it is the same report again, and its acknowledgement was lost. A report that cannot be
forwarded now is tried again while the runner's session lasts; after that, the runner brings it to another coordinator.
A report for a full mailbox waits apart, so that it does not hold up others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.lease.frames import RefusedReport
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.session.server import ServerSession
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter
from services.coordinator.app.owned_execution import ReceivedReport
from services.coordinator.app.ports import MailboxFull, RunStandings, Standing

log = logger(__name__)

_BATCH: Final = 200
# A report beyond this number is dropped; its runner repeats it when it attaches again.
_WAITING_MAX: Final = 20_000
# Full mailboxes are tried again after this time.
_FULL_SECONDS: Final = 2.0

_misrouted = counter(
    "coordinator_misrouted_reports_total", "Reports of runs that another coordinator holds.", ["result"]
)

MisroutedReport = tuple[ServerSession, ReceivedReport]


Standings = Callable[[Sequence[str]], Awaitable[Mapping[str, Standing]]]
# Puts a report into the mailbox of its execution, whose workspace is given. False: no dispatcher knows the execution
# (any more). Raises MailboxFull.
Deliver = Callable[[ReceivedReport, str], Awaitable[bool]]


class ReportForwarder:
    def __init__(self, standings: Standings, run_standings: RunStandings, deliver: Deliver) -> None:
        self._standings = standings
        self._run_standings = run_standings
        self._deliver = deliver
        self._waiting: list[MisroutedReport] = []
        # The reports whose mailbox was found full, by execution.
        self._full: dict[str, list[MisroutedReport]] = {}
        self._level = Level()

    def add(self, session: ServerSession, report: ReceivedReport) -> None:
        if len(self._waiting) + sum(map(len, self._full.values())) >= _WAITING_MAX:
            log.error("too many misrouted reports", lease_id=report.lease_id)
            return
        self._waiting.append((session, report))
        self._level.set()

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._level.wait()
            while self._waiting:
                batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                try:
                    left = await self.serve(batch)
                except DependencyUnavailable as failure:
                    log.warning("misrouted reports must wait", reports=len(batch), error=str(failure))
                    left = batch
                if left:
                    self._waiting += left
                    await asyncio.sleep(backoff.next())
                else:
                    backoff.reset()

    def _wait_for_room(self, session: ServerSession, report: ReceivedReport) -> None:
        if not self._full:
            asyncio.get_running_loop().call_later(_FULL_SECONDS, self._try_full)
        self._full.setdefault(report.execution_id, []).append((session, report))

    def _try_full(self) -> None:
        full, self._full = self._full, {}
        for reports in full.values():
            self._waiting += reports
        self._level.set()

    async def serve(self, batch: Sequence[MisroutedReport]) -> Sequence[MisroutedReport]:
        """Returns the reports that must be tried again."""
        ids = {report.execution_id for _, report in batch}
        standings = await self._standings(sorted(filter(None, ids)))
        answers = await asyncio.gather(*(self._settle(*each, standings) for each in batch))
        return [each for each, is_settled in zip(batch, answers, strict=True) if not is_settled]

    async def _settle(self, session: ServerSession, report: ReceivedReport, standings: Mapping[str, Standing]) -> bool:
        execution_id = report.execution_id
        standing = standings.get(execution_id)
        # All these get the same answer, so that nobody learns what others run.
        if standing is None or not report.number or not session.data.serves(standing.workspace):
            return self._refuse(session, report, "LEASE_UNKNOWN")
        if standing.is_final:
            return await self._settle_final(session, report)
        if execution_id in self._full:
            self._wait_for_room(session, report)
            return True
        try:
            is_known = await self._deliver(report, standing.workspace)
        except MailboxFull:
            log.info("a misrouted report waits for room", lease_id=report.lease_id)
            self._wait_for_room(session, report)
            return True
        except DependencyUnavailable as failure:
            log.warning("a misrouted report cannot be forwarded", lease_id=report.lease_id, error=str(failure))
            return False
        if not is_known:
            return await self._settle_final(session, report)
        _misrouted.labels("forwarded").inc()
        log.info("forwarded a misrouted report", lease_id=report.lease_id, epoch=report.epoch)
        session.acknowledge([report.report_id])
        return True

    async def _settle_final(self, session: ServerSession, report: ReceivedReport) -> bool:
        name = (report.execution_id, report.number)
        try:
            run = (await self._run_standings([name])).get(name)
        except DependencyUnavailable as failure:
            log.warning("a report must wait", lease_id=report.lease_id, error=str(failure))
            return False
        if run is None or run.instance_id != report.instance_id:
            return self._refuse(session, report, "LEASE_UNKNOWN")
        if run.epoch != report.epoch:
            return self._refuse(session, report, "EPOCH_STALE")
        if run.is_live or run.is_taken_back:
            return self._refuse(session, report, "EXECUTION_FINAL")
        session.acknowledge([report.report_id])
        return True

    def _refuse(self, session: ServerSession, report: ReceivedReport, reason: str) -> bool:
        _misrouted.labels("refused").inc()
        log.warning("late report refused", lease_id=report.lease_id, epoch=report.epoch, reason=reason)
        session.refuse_reports([RefusedReport(report.report_id, reason)])
        return True
