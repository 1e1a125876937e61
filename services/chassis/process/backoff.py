"""How long to wait before the next try to reach a peer that is away.

The wait is jittered, so that the clients of a restarted server do not all come back in the same millisecond. This is
for our own connections, and not for retries of the users' work.
"""

from __future__ import annotations

import random


class Backoff:
    def __init__(self, *, first: float = 0.05, factor: float = 2.0, cap: float = 2.0) -> None:
        if first <= 0 or factor < 1 or cap < first:
            raise ValueError("a backoff needs 0 < first <= cap and factor >= 1")
        self._first, self._factor, self._cap = first, factor, cap
        self._ceiling = first

    def next(self) -> float:
        """Seconds to wait now. Their upper bound grows with every call until `reset`."""
        # Never near zero, because such a wait would be a busy loop now and then.
        wait = self._ceiling * (0.1 + 0.9 * random.random())
        self._ceiling = min(self._ceiling * self._factor, self._cap)
        return wait

    def reset(self) -> None:
        self._ceiling = self._first
