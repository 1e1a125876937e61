"""What a tier means: how many executions of a workspace run and are queued at once, and its share of the runners."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple


class Tier(IntEnum):
    """The tiers, with the numbers of the public enum."""

    FREE = 1
    PRO = 2
    ENTERPRISE = 3


EXECUTIONS_MAX: Final[Mapping[int, int]] = {Tier.FREE: 1, Tier.PRO: 5, Tier.ENTERPRISE: 20}
QUEUED_MAX: Final = 100_000
# By these numbers workspaces share the places of a runner. They lie closer together than the limits, because a runner
# has few places.
RUNNER_WEIGHTS: Final[Mapping[int, int]] = {Tier.FREE: 1, Tier.PRO: 2, Tier.ENTERPRISE: 4}


class TierLimits(NamedTuple):
    executions_max: int
    queued_max: int


def in_force(tier: int, executions_max: int, queued_max: int) -> TierLimits:
    """The workspace's own limits, or its tier's where they are 0. An unknown tier has the limits of FREE."""
    of_tier = EXECUTIONS_MAX.get(tier, EXECUTIONS_MAX[Tier.FREE])
    return TierLimits(executions_max or of_tier, queued_max or QUEUED_MAX)
