"""How a holder divides its free places among the servers it is attached to.

The rule: every server gets a small standing credit, so that its first work starts without asking; the rest
goes in proportion to the demand that each has stated, or in equal parts while nobody has any. A credit once
given is called back only when it is needed: when another server lacks its standing credit, or has more
demand than credit, and there are no places unassigned; or when the holder has fewer places than it promised.

Why not finer. Demand is news of a moment ago, so a cleverer division would chase noise; and what a wrong
division can cost is bounded: a server with demand always has its standing credit, and gets its share one
round trip after it says so. Why called back at all: a server without work would otherwise sit on places
that another one's work waits for.
"""

from collections.abc import Sequence

# Enough to start first work at once, little enough that ten idle servers do not tie up a small runner.
STANDING = 1


def shares(places: int, demands: Sequence[int]) -> list[int]:
    """Places per server, in the order of their demands; they sum up to at most `places`."""
    if not demands:
        return []
    count = len(demands)
    total = sum(demands)
    if total == 0:
        even, over = divmod(places, count)
        return [even + (1 if index < over else 0) for index in range(count)]
    standing = min(STANDING, places // count)
    rest = places - standing * count
    given = [standing + rest * demand // total for demand in demands]
    # What rounding left over goes to the hungriest.
    given[max(range(count), key=demands.__getitem__)] += places - sum(given)
    return given
