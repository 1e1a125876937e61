"""How long to wait before the next try to reach a peer that is away.

The wait is jittered, so that the clients of a restarted server do not all come back in the same millisecond. This is
for our own connections, and not for retries of the users' work.
"""

from __future__ import annotations

import random


class Backoff:
    def __init__(self, *, first: float = 0.05, cap: float = 2.0) -> None:
        if not 0 < first <= cap:
            raise ValueError("a backoff needs 0 < first <= cap")
        self._first, self._cap = first, cap
        self._ceiling = first

    def next(self) -> float:
        """Seconds to wait now. Their upper bound doubles with every call until `reset`."""
        # The wait is never near zero, because that would be a busy loop now and then.
        wait = self._ceiling * (0.1 + 0.9 * random.random())
        self._ceiling = min(self._ceiling * 2, self._cap)
        return wait

    def reset(self) -> None:
        self._ceiling = self._first
