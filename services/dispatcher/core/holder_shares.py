"""How the places of a claim are shared among holders. The shares are fixed before the number of rows is known."""

from collections.abc import Sequence


def holder_order(room: Sequence[int]) -> list[int]:
    """The holder index of each place: round robin, beginning with the holder that has the most credit.

    A claim that fills only the first few places is spread over all holders in this way.
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
    """How much credit to reserve at each holder: as even as their credit allows, at most `wanted` in total."""
    taken = [0] * len(room)
    by_credit = sorted(range(len(room)), key=room.__getitem__)
    left, holders = wanted, len(by_credit)
    for index in by_credit:
        # The last holder has the most credit and takes the remainder of the division.
        taken[index] = min(room[index], -(-left // holders) if holders == 1 else left // holders)
        left -= taken[index]
        holders -= 1
    return taken


def reach(places: int, workspaces: int) -> int:
    """How many rows of each workspace a claim looks at: all places for one workspace, else twice the fair share.

    Others may take up to that many of the places that a short workspace leaves free; the next batch fills the rest.
    """
    return places if workspaces == 1 else max(1, 2 * places // workspaces)
