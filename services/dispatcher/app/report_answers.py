"""Answer the reports of holders after their commit: acknowledge those that had effect, refuse those that came late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.dispatcher.app.admission_metrics import AdmissionMetrics
from services.dispatcher.app.ports import CoordinatorSession, PendingRelease, PendingReport
from services.dispatcher.core.items import LateReason


def acknowledge(reports: Iterable[PendingReport | PendingRelease]) -> None:
    """One acknowledgement for each holder."""
    by_holder: dict[int, tuple[CoordinatorSession, list[str]]] = {}
    for each in reports:
        by_holder.setdefault(id(each.holder), (each.holder, []))[1].append(each.report_id)
    for holder, report_ids in by_holder.values():
        holder.acknowledge(report_ids)


def answer_late(
    reports: Sequence[PendingReport | PendingRelease], reasons: Sequence[LateReason | None], metrics: AdmissionMetrics
) -> None:
    """Reports that changed nothing now. Without a reason, a report had its effect when it was delivered before."""
    for each, reason in zip(reports, reasons, strict=True):
        if reason is None:
            each.holder.acknowledge([each.report_id])
        else:
            each.holder.refuse(each.report_id, reason)
            metrics.late(each.report, each.holder.instance_id, reason)
