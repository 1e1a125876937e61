"""How long to wait before the next try at something that is away.

Full jitter: a restarted server is not met by all its clients in the same millisecond. For our own
connections only; retries of the work that users hand us are data, decided elsewhere.
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
        """Seconds to wait now; the ceiling grows with every call until `reset`."""
        # Not zero: a jittered wait that can be nothing is a busy loop once in a while.
        wait = self._ceiling * (0.1 + 0.9 * random.random())
        self._ceiling = min(self._ceiling * self._factor, self._cap)
        return wait

    def reset(self) -> None:
        self._ceiling = self._first
