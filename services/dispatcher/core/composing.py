"""Compose a batch: the new starts that may go ahead at once, the workspaces to claim from, a holder for each row.

The credit of the holders is shared out before the number of rows is known.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.core.items import LeaseFinished, LeaseParked, NewStart
from services.dispatcher.core.workspace_queues import WorkspaceQueues

CLAIMS_PER_BATCH: Final = 500
ENDING_PER_BATCH: Final = 20
WORKSPACES_PER_BATCH: Final = 100


def compose(
    queues: WorkspaceQueues,
    new_starts: Sequence[NewStart],
    reports: Sequence[LeaseFinished | LeaseParked],
    rooms: Mapping[str, int],
    *,
    is_ending_ready: bool,
    now: datetime,
    monotonic: float,
) -> AdmissionBatch:
    """`rooms` has the credit that is reserved at each holder, by its instance id."""
    indexes = holder_order([*rooms.values()])
    ending = indexes[:ENDING_PER_BATCH] if is_ending_ready else []
    left = len(indexes) - len(ending)
    # While others wait, new starts get at most half of the credit. The claim after them sees them in any case.
    direct = left // 2 if queues.has_ready else left
    offered = iter(indexes[len(ending) : len(ending) + direct])
    new_start_holders = [next(offered, -1) if queues.takes_new_starts(each.workspace) else -1 for each in new_starts]
    used = len(ending) + len(new_starts) - new_start_holders.count(-1)
    claim_holders = indexes[used : used + CLAIMS_PER_BATCH]
    workspaces = queues.take(WORKSPACES_PER_BATCH) if claim_holders else []
    # Every writer of several rows locks them in the order of their ids.
    in_order = sorted(reports, key=lambda each: each.execution_id)
    return AdmissionBatch(
        now=now,
        new_starts=new_starts,
        new_start_holders=new_start_holders,
        waiting=_waiting(queues, new_starts, monotonic),
        finished=[each for each in in_order if isinstance(each, LeaseFinished)],
        parked=[each for each in in_order if isinstance(each, LeaseParked)],
        workspaces=workspaces,
        claim_holders=claim_holders if workspaces else (),
        ending_holders=ending,
        holders=[*rooms],
    )


def _waiting(queues: WorkspaceQueues, new_starts: Sequence[NewStart], monotonic: float) -> dict[str, int]:
    arriving = Counter([new_start.workspace for new_start in new_starts])
    known = {name: queues.waiting(name, count, monotonic) for name, count in arriving.items()}
    return {name: count for name, count in known.items() if count is not None}


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
