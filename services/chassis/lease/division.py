"""Divides the free places of a holder among the servers that it is attached to.

Every server gets a small standing credit, so that its first work starts without a round trip. The rest is
divided in proportion to the demand that each server has stated, or equally when no server has demand. A
finer division would chase noise, because a stated demand is already old, and a wrong division costs little:
a server with demand has its standing credit, and gets its share one round trip after it states the demand.

Servers with demand come first: a server may keep one place of its credit free, as a reserve, and so it could not use
a single one. Without this, as many servers as there are free places would have one each, and none that it could use.
"""

from collections.abc import Collection, Sequence

from services.chassis.lease.stream import HolderStream, StreamState

# This is enough to start the first work at once. It is so little that ten idle servers do not tie up a small runner.
STANDING = 1
# The standing credit of a server with demand.
STANDING_WITH_DEMAND = 2


def shares(places: int, demands: Sequence[int]) -> list[int]:
    """Places per server, in the order of `demands`. They sum up to at most `places`."""
    if not demands:
        return []
    count = len(demands)
    total = sum(demands)
    if total == 0:
        even, over = divmod(places, count)
        return [even + (1 if index < over else 0) for index in range(count)]
    wanting = sum(demand > 0 for demand in demands)
    first = min(STANDING_WITH_DEMAND, places // wanting)
    idle = min(STANDING, max(0, places - STANDING_WITH_DEMAND * wanting) // max(1, count - wanting))
    rest = places - first * wanting - idle * (count - wanting)
    given = [first + rest * demand // total if demand else idle for demand in demands]
    # The server with the highest demand gets the remainder of the rounding.
    given[max(range(count), key=demands.__getitem__)] += places - sum(given)
    return given


def divide(streams: Collection[HolderStream], free: int) -> None:
    """Divide the free places: raise credits from unassigned places, and call credits back when needed.

    Credit is called back when the holder has promised more places than it has, or when no place is unassigned and
    another server lacks its standing credit or has more demand than credit.
    """
    live = [each for each in streams if each.state is StreamState.LIVE]
    unassigned = free - sum(each.promised for each in streams)
    targets = shares(free, [each.demand for each in live])
    wanted = 0
    for stream, target in zip(live, targets, strict=True):
        # A grant may have come under a statement that was lowered since. What it took beyond the credit is no place.
        left = max(0, stream.left)
        lack = target - left
        if stream.confirms or lack < max(1, target // 8):
            continue
        raised = min(lack, max(0, unassigned))
        if raised:
            stream.restate(left + raised)
            unassigned -= raised
        standing = STANDING_WITH_DEMAND if stream.demand else STANDING
        if raised < lack and (stream.demand > stream.left or stream.left < standing):
            wanted += lack - raised
    if (wanted or unassigned < 0) and _call_back(live, targets, slack=4 if unassigned >= 0 else 0):
        divide(streams, free)


def _call_back(live: list[HolderStream], targets: list[int], slack: int) -> bool:
    """Lower credits to their targets. True when places are free at once, because no server had heard of the credit.

    `slack` leaves small differences alone, so that two busy servers do not exchange places for ever.
    """
    promised = sum(stream.promised for stream in live)
    for stream, target in zip(live, targets, strict=True):
        over = stream.left - target
        if over > 0 and not stream.confirms and (not slack or over > target // slack):
            stream.restate(target)
    return sum(stream.promised for stream in live) < promised
