"""How the places of a claim are shared out among holders before it is known how many it will fill."""

from collections.abc import Sequence


def holder_order(room: Sequence[int]) -> list[int]:
    """The holder of each place: round robin, those with more credit first and longer. Index by place.

    Interleaved, so that a claim that fills only the first few places still spreads them.
    """
    if len(room) == 1:
        return [0] * room[0]
    order: list[int] = []
    left = sorted(((credit, index) for index, credit in enumerate(room) if credit > 0), reverse=True)
    while left:
        order.extend([index for _, index in left])
        left = [(credit - 1, index) for credit, index in left if credit > 1]
    return order


def shares(room: Sequence[int], wanted: int) -> list[int]:
    """How much to reserve with each: as even as their credit allows, at most `wanted` in all."""
    taken = [0] * len(room)
    by_credit = sorted(range(len(room)), key=room.__getitem__)
    left, holders = wanted, len(by_credit)
    for index in by_credit:
        # Rounded up for the last, who have the most: nothing of `wanted` is left over while there is credit.
        taken[index] = min(room[index], -(-left // holders) if holders == 1 else left // holders)
        left -= taken[index]
        holders -= 1
    return taken


def reach(places: int, workspaces: int) -> int:
    """How many of each workspace a claim looks at: all places for one workspace, twice the fair share among several.

    What a short workspace leaves over goes to the others in this batch up to that, and in the next beyond it.
    """
    return places if workspaces == 1 else max(1, 2 * places // workspaces)
