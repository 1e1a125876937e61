"""How many leases a runner asks for beyond those that it can run now.

A runner that asks only for what it can run now idles for a round trip after each run; one that asks for much more keeps
work from others. The window is the number of short runs that it finished in the last 50 ms. Short work streams: each
round trip doubles the window until the runner is busy. Runs of more than 50 ms do not count, even if many end at once:
what is asked for because of them would wait behind its like, and so would the short work of others.
"""

from __future__ import annotations

from collections import deque

SPAN_SECONDS = 0.05
AHEAD_MAX = 1_000


class Window:
    """Counts completions over a sliding span."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._finished: deque[tuple[float, int]] = deque()
        self._sum = 0

    def finished(self, now: float, count: int) -> None:
        """`count` runs ended at `now` (monotonic seconds)."""
        self._finished.append((now, count))
        self._sum += count

    def capacity(self, now: float) -> int:
        """The number of leases to ask for: the runs that fit now, and those that will have finished on arrival."""
        while self._finished and self._finished[0][0] < now - SPAN_SECONDS:
            self._sum -= self._finished.popleft()[1]
        return self._concurrency + min(self._sum, AHEAD_MAX)
