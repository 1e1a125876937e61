"""The runner's side of its sessions with coordinators: grants come in, outcomes and progress go out."""

from __future__ import annotations

from typing import cast

from services.chassis.lease.frames import REPORT_INVALID, Grant, Refused, Report
from services.chassis.process.clock import Clock
from services.chassis.process.crash import crash_point
from services.chassis.session.codec import HopCodec
from services.chassis.session.holder import SessionHolder
from services.chassis.telemetry.logs import logger
from services.runner.app.worker import Worker
from services.runner.core.job import ENDING_REASONS, Ended
from services.runner.peers.translate import job_of, progress_of, report_of
from windlass.coordinator.v1 import sessions_pb2 as pb

log = logger(__name__)

CODEC = HopCodec(holder_frame=pb.SessionRequest, server_frame=pb.SessionResponse, holder_notes="progress")


class CoordinatorSessions:
    """Stands between the session library, for which it is the owner, and the worker, for which it is the holder."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holder: SessionHolder
        self._worker: Worker

    def join(self, holder: SessionHolder, worker: Worker) -> None:
        """Set both sides. Each of them is made with this object, so this cannot happen in `__init__`."""
        self._holder, self._worker = holder, worker

    def may_start(self) -> bool:
        return self._holder.may_start()

    def has_demand(self) -> bool:
        return self._holder.demand > 0

    def set_capacity(self, capacity: int) -> None:
        self._holder.set_capacity(capacity)

    def report(self, ended: Ended) -> None:
        report_id = self._holder.new_report_id()
        job, report = ended.job, report_of(ended, report_id)
        # The report may outlive the instance that was granted the run.
        report.head.instance_id = self._holder.instance_id
        crash_point("runner.report.before")
        self._holder.report(report_id, job.run_id, job.epoch, report, ends_lease=True)
        crash_point("runner.report.after")

    def on_grants(self, grants: list[Grant]) -> None:
        crash_point("runner.grant.before")
        now_ns = self._clock.epoch_ns()
        self._worker.take([job_of(cast("pb.RunGrant", grant.work), now_ns) for grant in grants])
        crash_point("runner.grant.after")

    def on_revoked(self, revoked: list[Refused]) -> None:
        self._worker.stop([lease.lease_id for lease in revoked if lease.reason in ENDING_REASONS])
        self._worker.drop([lease.lease_id for lease in revoked if lease.reason not in ENDING_REASONS])

    def on_reports_taken(self, reports: list[Report]) -> None:
        """Nothing to do: the holder keeps the reports itself."""
        crash_point("runner.acknowledge.after")

    def on_reports_refused(self, refused: list[tuple[Report, str]]) -> None:
        for report, reason in refused:
            log.warning("report refused", run_id=report.lease_id, epoch=report.epoch, reason=reason)
            if reason == REPORT_INVALID:
                self._report_as_failed(cast("pb.RunReport", report.body))

    def _report_as_failed(self, unread: pb.RunReport) -> None:
        """The coordinator is older and does not know the outcome. Every coordinator knows a failure."""
        report, report_id = pb.RunReport(), self._holder.new_report_id()
        report.CopyFrom(unread)
        report.head.report_id = report_id
        setattr(report.failed, "class", pb.ERROR_CLASS_TRANSIENT)
        report.failed.type, report.failed.message = REPORT_INVALID, "the coordinator did not understand the outcome"
        self._holder.report(report_id, report.head.lease_id, report.head.epoch, report, ends_lease=True)

    def on_notes(self, address: str, notes: list[object]) -> None:
        """Coordinators send none."""

    def beat_notes(self, address: str, *, is_full: bool) -> list[pb.RunProgress]:
        return [progress_of(news) for news in self._worker.news(address, anew=is_full)]

    def on_fenced(self) -> None:
        log.warning("no coordinator has answered in time: nothing new is begun")

    def on_resumed(self) -> None:
        log.info("a coordinator answers again")
        self._worker.resume()

    def on_ended(self, reason: str) -> None:
        log.warning("the leases of this runner were ended: its work is stopped", reason=reason)
        self._worker.drop_all()
