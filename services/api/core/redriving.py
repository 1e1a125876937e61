"""How many dead letters are requeued before it is seen whether they fail again.

    first one, then one in twenty, then all the rest in pieces

It goes on while at most a tenth of those that have ended did not succeed: they failed again, or their execution was
cancelled or timed out, which says just as little for the rest. So a cause that was not mended costs one run, and one
that is mended for most costs few.
"""

import enum
import math

_FEW: float = 0.05
_FAILED_SHARE_MAX: float = 0.1
PIECE: int = 100


class LaterOutcome(enum.Enum):
    """What became of the work of a dead letter that was requeued."""

    SUCCEEDED = enum.auto()
    FAILED_AGAIN = enum.auto()
    # The execution ended first: a person cancelled it, or its time was over.
    CANCELLED = enum.auto()


def next_piece(total: int, resolved: int) -> int:
    """How many are to be resolved next. 0: all are."""
    left = total - resolved
    if resolved == 0:
        return min(left, 1)
    few = max(1, math.ceil(total * _FEW) - 1)
    return min(left, few) if resolved == 1 else min(left, PIECE)


def is_failing(succeeded: int, not_succeeded: int) -> bool:
    return not_succeeded > _FAILED_SHARE_MAX * (succeeded + not_succeeded)
