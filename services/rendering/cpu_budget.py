"""Limits the CPU time that each workspace may use in the children that render.

The time that a workspace has used is forgotten at a steady rate. One that has used more than the burst waits until
enough is forgotten, so over a long time it uses no more than that rate.
"""

from __future__ import annotations

BURST_SECONDS = 10.0
# The share of a core that a workspace may use for ever.
RATE = 0.5
# Beyond this number, workspaces that have nothing left to forget are dropped.
KEPT_MAX = 1_000


class CpuBudgets:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        # What each workspace had used, and when that was.
        self._used: dict[str, tuple[float, float]] = {}

    def spend(self, workspace: str, seconds: float, now: float) -> None:
        if len(self._used) >= KEPT_MAX:
            self._used = {name: each for name, each in self._used.items() if self._rest(name, now)}
        self._used[workspace] = (self._rest(workspace, now) + seconds, now)

    def wait(self, workspace: str, now: float) -> float:
        """For how many seconds the workspace may use nothing more; 0 when it may."""
        return max(0.0, (self._rest(workspace, now) - BURST_SECONDS) / RATE)

    def _rest(self, workspace: str, now: float) -> float:
        used, since = self._used.get(workspace, (0.0, now))
        return max(0.0, used - (now - since) * RATE)
