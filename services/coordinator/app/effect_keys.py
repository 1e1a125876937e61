"""The keys by which third parties tell repeated effects apart: equal over all attempts at the same work.

HMAC-SHA256 of (execution, node, iteration, generation) under the workspace's secret, which stays with us: nobody can
make the key of another's work.
"""

from __future__ import annotations

import hmac

from services.coordinator.core.state import Run


class EffectKeys:
    """A copy of the keyed state costs less than half of what `hmac.digest` does."""

    __slots__ = ("_keyed",)

    def __init__(self, secret: bytes) -> None:
        self._keyed = hmac.new(secret, digestmod="sha256")

    def of(self, execution_id: str, run: Run) -> str:
        node, iteration, generation = run.work.key
        keyed = self._keyed.copy()
        keyed.update(f"{execution_id}/{node}/{iteration}/{generation}".encode())
        return keyed.hexdigest()
