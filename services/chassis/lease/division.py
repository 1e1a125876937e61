"""How a holder divides its free places among the servers that it is attached to.

Every server gets a small standing credit, so that its first work starts without a round trip. The rest is
divided in proportion to the demand that each server has stated, or equally when no server has demand. A
finer division would chase noise, because a stated demand is already old, and a wrong division costs little:
a server with demand has its standing credit, and gets its share one round trip after it states the demand.
"""

from collections.abc import Sequence

# Enough to start the first work at once, and so little that ten idle servers do not tie up a small runner.
STANDING = 1


def shares(places: int, demands: Sequence[int]) -> list[int]:
    """Places per server, in the order of `demands`. They sum up to at most `places`."""
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
    # The server with the highest demand gets the remainder of the rounding.
    given[max(range(count), key=demands.__getitem__)] += places - sum(given)
    return given
