"""Changes leases outside of the batches: refused grants, releases, leases of ended instances, late reports, and notes
of executions that have begun.

Each item is kept until it is committed; then the admission loop looks at its workspace again. The statements leave a
lease alone that another holder has by now, so the order does not matter here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from services.chassis.lease.frames import RefusedReport
from services.chassis.process.clock import Clock
from services.chassis.process.lifecycle import Loops
from services.chassis.telemetry.logs import logger
from services.dispatcher.app.admission_inbox import AdmissionInbox
from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.backlog import Backlog
from services.dispatcher.app.ports import CoordinatorSession, Leases, PendingReport
from services.dispatcher.core.items import LeaseBegun, LeaseFinished, LeaseReleased, State

log = logger(__name__)


class Returns:
    def __init__(self, *, leases: Leases, inbox: AdmissionInbox, metrics: AdmissionMetrics, clock: Clock) -> None:
        self._leases = leases
        self._inbox = inbox
        self._metrics = metrics
        self._ended = Backlog("leases of ended instances", self._end, clock)
        self._handed_back = Backlog("grants to return", self._hand_back, clock)
        self._released = Backlog("releases", self._release, clock)
        self._begun = Backlog("notes of what has begun", self._note_begun, clock)
        # It comes last, because the releases add to it.
        self._late: Backlog[PendingReport[Any]] = Backlog("late reports", self._answer_late, clock)
        self._backlogs: tuple[Backlog[Any], ...] = (
            self._ended,
            self._handed_back,
            self._released,
            self._begun,
            self._late,
        )

    def hand_back(self, leases: Iterable[tuple[str, int]]) -> None:
        """It is certain that no holder has these leases (execution and epoch)."""
        self._handed_back.add(leases)

    def released(self, pending: Iterable[PendingReport[LeaseReleased]]) -> None:
        self._released.add(pending)

    def begun(self, pending: Iterable[PendingReport[LeaseBegun]]) -> None:
        """These executions have a journal."""
        self._begun.add(pending)

    def ended(self, instances: Iterable[str]) -> None:
        """The leases of these instances are free."""
        self._ended.add(instances)

    def late(self, pending: Iterable[PendingReport[Any]]) -> None:
        """These reports changed nothing. Their holders are told why."""
        self._late.add(pending)

    async def idle(self) -> None:
        for each in self._backlogs:
            await each.idle()

    @property
    def loops(self) -> Loops:
        return [(each.what, each.run) for each in self._backlogs]

    async def run_once(self) -> None:
        for each in self._backlogs:
            await each.run_once()

    async def _end(self, instances: list[str]) -> None:
        requeued = await self._leases.end(instances)
        if requeued:
            log.info("took back the executions of ended coordinators", instances=instances, executions=len(requeued))
        self._inbox.requeued(requeued)

    async def _hand_back(self, leases: list[tuple[str, int]]) -> None:
        self._inbox.requeued(await self._leases.hand_back(leases))

    async def _release(self, batch: list[PendingReport[LeaseReleased]]) -> None:
        committed = {pending.report for pending in batch if await self._fail(pending.report)}
        plain = [pending.report for pending in batch if not pending.report.is_failure]
        if plain:
            begun = {report.execution_id for report in plain if report.has_begun}
            requeued = await self._leases.hand_back([(report.execution_id, report.epoch) for report in plain], begun)
            self._inbox.requeued(requeued)
            ids = {row.execution_id for row in requeued}
            committed.update(report for report in plain if report.execution_id in ids)
        acknowledge([pending for pending in batch if pending.report in committed])
        self.late([pending for pending in batch if pending.report not in committed])

    async def _note_begun(self, batch: list[PendingReport[LeaseBegun]]) -> None:
        await self._leases.note_begun([(pending.report.execution_id, pending.report.epoch) for pending in batch])
        acknowledge(batch)

    async def _fail(self, report: LeaseReleased) -> bool:
        failed = await self._leases.fail(report) if report.is_failure else None
        if failed is None:
            return False
        workspace, fate = failed
        self._metrics.dispatch_failed(report.execution_id, report.reason, report.message, fate.attempts)
        if fate.state is State.FAILED:
            self._metrics.dead_letter(report.execution_id, workspace, fate.failure_reason)
        self._inbox.work_in(workspace)
        return True

    async def _answer_late(self, late: list[PendingReport[Any]]) -> None:
        late = await self._without_reopened(late)
        reasons = await self._leases.reasons([each.report for each in late])
        for each, reason in zip(late, reasons, strict=True):
            if reason is None:
                # It had its effect when it was delivered before.
                each.holder.acknowledge([each.report_id])
            else:
                each.holder.refuse_reports([RefusedReport(each.report_id, reason)])
                self._metrics.late(each.report, each.holder.instance_id, reason)

    async def _without_reopened(self, late: list[PendingReport[Any]]) -> list[PendingReport[Any]]:
        """An end that has changed nothing may be that of an execution which a message is to reopen."""
        ended = [each.report for each in late if isinstance(each.report, LeaseFinished)]
        if not ended:
            return late
        requeued = await self._leases.keep_open([(report.execution_id, report.epoch) for report in ended])
        if not requeued:
            return late
        self._inbox.requeued(requeued)
        ids = {row.execution_id for row in requeued}
        acknowledge([each for each in late if _is_end_of(each, ids)])
        return [each for each in late if not _is_end_of(each, ids)]


def _is_end_of(pending: PendingReport[Any], execution_ids: Collection[str]) -> bool:
    return isinstance(pending.report, LeaseFinished) and pending.report.execution_id in execution_ids


def acknowledge(reports: Iterable[PendingReport[Any]]) -> None:
    """Call this after the commit of these reports. One acknowledgement for each holder."""
    by_holder: dict[int, tuple[CoordinatorSession, list[str]]] = {}
    for each in reports:
        by_holder.setdefault(id(each.holder), (each.holder, []))[1].append(each.report_id)
    for holder, report_ids in by_holder.values():
        holder.acknowledge(report_ids)
