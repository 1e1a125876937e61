"""Reports that the database refuses to store while it accepts the rest of their batch.

Such a report gets no answer. Its holder keeps it, and it is tried again here until it is stored or another holder has
the lease. Until then the row keeps its state and its slot.

The number kept is bounded by the reports that holders may leave unanswered, because a report that is sent again
replaces the first. Few are tried again at once: each splits its batch into several transactions.
"""

from __future__ import annotations

from typing import Final

from services.dispatcher.app.ports import BatchReport

AGAIN_SECONDS: Final = 5.0
AGAIN_AT_ONCE: Final = 50


class RetryLater:
    def __init__(self) -> None:
        # The reports by execution and epoch, with the time of the next try, in the order of that time.
        self._kept: dict[tuple[str, int], tuple[float, BatchReport]] = {}

    def keep(self, pending: BatchReport, now: float) -> None:
        key = (pending.report.execution_id, pending.report.epoch)
        self._kept.pop(key, None)
        self._kept[key] = (now + AGAIN_SECONDS, pending)

    def due(self, now: float) -> list[BatchReport]:
        """Remove and return the reports that are to be tried again now."""
        keys = [key for key, (due_at, _) in self._kept.items() if due_at <= now]
        return [self._kept.pop(key)[1] for key in keys[:AGAIN_AT_ONCE]]
