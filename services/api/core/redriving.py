"""How many dead letters are requeued before it is seen whether they fail again.

    first one, then one in twenty, then all the rest in pieces

It goes on while at most a tenth of those that have ended failed again. So a cause that was not mended costs one run,
and one that is mended for most costs few.
"""

import math

_FEW: float = 0.05
_FAILED_SHARE_MAX: float = 0.1
PIECE: int = 100


def next_piece(total: int, resolved: int) -> int:
    """How many are to be resolved next. 0: all are."""
    left = total - resolved
    if resolved == 0:
        return min(left, 1)
    few = max(1, math.ceil(total * _FEW) - 1)
    return min(left, few) if resolved == 1 else min(left, PIECE)


def is_failing(succeeded: int, failed_again: int) -> bool:
    return failed_again > _FAILED_SHARE_MAX * (succeeded + failed_again)
