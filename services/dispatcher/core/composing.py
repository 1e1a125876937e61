"""Compose a batch: the new starts that may go ahead at once, the workspaces to claim from, a holder for each row."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from services.dispatcher.core.batch import AdmissionBatch
from services.dispatcher.core.holder_shares import holder_order
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
    new_start_holders, used = _holders_for(queues, new_starts, indexes[len(ending) : len(ending) + direct])
    claim_holders = indexes[len(ending) + used :][:CLAIMS_PER_BATCH]
    workspaces = queues.take(WORKSPACES_PER_BATCH) if claim_holders else []
    return AdmissionBatch(
        now=now,
        new_starts=new_starts,
        new_start_holders=new_start_holders,
        waiting=_waiting(queues, new_starts, monotonic),
        finished=sorted([each for each in reports if isinstance(each, LeaseFinished)]),
        parked=sorted([each for each in reports if isinstance(each, LeaseParked)], key=_by_id),
        workspaces=workspaces,
        claim_holders=claim_holders if workspaces else (),
        ending_holders=ending,
        holders=[*rooms],
    )


def _holders_for(
    queues: WorkspaceQueues, new_starts: Sequence[NewStart], offered: Sequence[int]
) -> tuple[list[int], int]:
    """A holder for each new start that may go ahead at once, else -1; and how many of `offered` were used."""
    indexes: list[int] = []
    used = 0
    for new_start in new_starts:
        if used < len(offered) and queues.takes_new_starts(new_start.workspace):
            indexes.append(offered[used])
            used += 1
        else:
            indexes.append(-1)
    return indexes, used


def _waiting(queues: WorkspaceQueues, new_starts: Sequence[NewStart], monotonic: float) -> dict[str, int]:
    arriving = Counter([new_start.workspace for new_start in new_starts])
    known = {name: queues.waiting(name, count, monotonic) for name, count in arriving.items()}
    return {name: count for name, count in known.items() if count is not None}


def _by_id(report: LeaseParked) -> tuple[str, int]:
    return report.execution_id, report.epoch
