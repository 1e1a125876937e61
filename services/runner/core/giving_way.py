"""When a long run gives its place to waiting work, if its module can go on from a cursor.

Giving way costs a run and the time since the last cursor. So each attempt keeps its place for longer than the one
before it, and a week of work gives way some 30 times.
"""

from __future__ import annotations

FIRST_SECONDS = 60.0
SECONDS_MAX = 8 * 3_600.0


def gives_way_after(attempt: int) -> float:
    """For how many seconds this attempt keeps its place, whoever waits."""
    return min(SECONDS_MAX, FIRST_SECONDS * 2.0 ** min(attempt - 1, 10))
