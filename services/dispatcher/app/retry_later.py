"""Reports that the database refuses to store, though nothing else of their batch.

Such a report is neither late nor done, so nobody is answered: its holder keeps it, and so do we, and it is tried again
in a while, until it is stored or its lease has become another's. Meanwhile the row stays as it is, with its slot.

As many are kept as holders may leave unanswered, since one that comes again, on another stream, takes the place of the
first; and few are tried again at once, for each costs its batch several statements until it stands alone.
"""

from __future__ import annotations

from typing import Final

from services.dispatcher.app.ports import PendingReport

# Within the time in which everything is to move again after a fault.
AGAIN_SECONDS: Final = 5.0
AGAIN_AT_ONCE: Final = 50


class RetryLater:
    def __init__(self) -> None:
        # By execution and epoch, with the time of the next try, which is the order as well.
        self._kept: dict[tuple[str, int], tuple[float, PendingReport]] = {}

    def keep(self, pending: PendingReport, now: float) -> None:
        key = (pending.report.execution_id, pending.report.epoch)
        self._kept.pop(key, None)
        self._kept[key] = (now + AGAIN_SECONDS, pending)

    def due(self, now: float) -> list[PendingReport]:
        """Those to be tried again now, kept here no longer."""
        keys: list[tuple[str, int]] = []
        for key, (due_at, _) in self._kept.items():
            if due_at > now or len(keys) == AGAIN_AT_ONCE:
                break
            keys.append(key)
        return [self._kept.pop(key)[1] for key in keys]
