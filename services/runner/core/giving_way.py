"""When a long run gives its place to waiting work, if its module can go on from a cursor.

Giving way costs a run and the time since the last cursor. So each attempt keeps its place for longer than the one
before it, and a week of work gives way some 30 times. While long runs are in the reserve, which is for workspaces that
need a place now and then, they keep their places for a shorter time.
"""

from __future__ import annotations

FIRST_SECONDS = 60.0
SECONDS_MAX = 8 * 3_600.0
FIRST_SECONDS_IN_RESERVE = 1.0


def gives_way_after(attempt: int, *, is_reserve_taken: bool = False) -> float:
    """For how many seconds this attempt keeps its place, whoever waits."""
    first_seconds = FIRST_SECONDS_IN_RESERVE if is_reserve_taken else FIRST_SECONDS
    return min(SECONDS_MAX, first_seconds * 2.0 ** min(attempt - 1, 10))
