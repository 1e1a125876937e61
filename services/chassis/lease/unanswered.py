"""Counts the reports of a session that are not answered yet, and their bytes.

An id may arrive several times, because a report is repeated until it is answered. An answer subtracts the smallest size
that arrived under its id: the total may be too high, never too low.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from services.chassis.lease.frames import REPORT_COST_BYTES, Report


class Unanswered:
    __slots__ = ("_sizes", "count", "size_bytes")

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        # The sizes that arrived under each report id, as a heap.
        self._sizes: dict[str, list[int]] = {}

    def add(self, reports: Iterable[Report]) -> None:
        for report in reports:
            size = report.size_bytes + REPORT_COST_BYTES
            heappush(self._sizes.setdefault(report.report_id, []), size)
            self.count += 1
            self.size_bytes += size

    def answer(self, report_ids: Iterable[str]) -> None:
        for report_id in report_ids:
            sizes = self._sizes.get(report_id)
            if sizes is None:
                continue
            self.count -= 1
            self.size_bytes -= heappop(sizes)
            if not sizes:
                del self._sizes[report_id]
