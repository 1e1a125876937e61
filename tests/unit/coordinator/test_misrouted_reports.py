"""Reports wait for a mailbox that has no room."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from services.chassis.lease.frames import Report
from services.coordinator.app.misrouted_reports import ReportForwarder
from services.coordinator.app.owned_execution import ReceivedReport
from services.coordinator.app.ports import MailboxFull, RunName, RunStanding, Standing
from services.coordinator.rpc.run_messages import received_report
from tests.support.probe import until
from windlass.coordinator.v1.sessions_pb2 import RunReport

FULL, OTHER = "0190c0de-0000-7000-8000-000000000001", "0190c0de-0000-7000-8000-000000000002"


class Session:
    """A runner's session that serves every workspace. It stands for the tables and the mailbox too."""

    def __init__(self) -> None:
        self.data = self
        self.acknowledged: list[str] = []
        self.full = {FULL}
        self.tried: list[str] = []

    def serves(self, workspace: str) -> bool:
        return True

    def acknowledge(self, report_ids: Sequence[str]) -> None:
        self.acknowledged += report_ids

    async def standings(self, execution_ids: Sequence[str]) -> Mapping[str, Standing]:
        return {each: Standing("w", 1, is_final=False) for each in execution_ids}

    async def run_standings(self, names: Collection[RunName]) -> Mapping[RunName, RunStanding]:
        raise AssertionError("no execution here is final")

    async def deliver(self, report: ReceivedReport, workspace: str) -> bool:
        self.tried.append(report.execution_id)
        if report.execution_id in self.full:
            raise MailboxFull(report.execution_id)
        return True


def report(execution_id: str, epoch: int) -> ReceivedReport:
    made = RunReport()
    made.head.report_id = f"{execution_id}:{epoch}"
    made.head.lease_id, made.head.epoch = f"{execution_id}.1", epoch
    made.succeeded.output.json = b"{}"
    return received_report(Report(made.head.report_id, made.head.lease_id, epoch, made, True), "i1")


async def test_full_mailbox_is_not_tried_with_each_report_and_holds_up_no_other() -> None:
    session = Session()
    misrouted_reports = ReportForwarder(session.standings, session.run_standings, session.deliver)
    runner = cast("Any", session)
    assert not await misrouted_reports.serve([(runner, report(FULL, 1))]), "what waits for room is not waited for"
    assert not await misrouted_reports.serve([(runner, report(FULL, 2)), (runner, report(OTHER, 1))])
    assert session.tried == [FULL, OTHER]
    assert session.acknowledged == [f"{OTHER}:1"]


async def test_reports_that_found_no_room_come_again() -> None:
    session = Session()
    misrouted_reports = ReportForwarder(session.standings, session.run_standings, session.deliver)
    running = asyncio.create_task(misrouted_reports.run())
    for epoch in (1, 2):
        misrouted_reports.add(cast("Any", session), report(FULL, epoch))
    await until(lambda: len(session.tried) > 2, 10.0, "another try")
    assert not session.acknowledged
    session.full.clear()
    await until(lambda: len(session.acknowledged) == 2, 10.0, "their acknowledgements")
    running.cancel()
