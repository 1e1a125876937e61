"""The keys by which third parties tell repeated effects apart: equal over all attempts at the same work.

HMAC-SHA256 of (execution, node, iteration, generation) under the workspace's secret, which stays with us: nobody can
make the key of another's work.
"""

from __future__ import annotations

import hmac

from services.coordinator.core.state import Run


class EffectKeys:
    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, execution_id: str, run: Run) -> str:
        node, iteration, generation = run.work.key
        name = f"{execution_id}/{node}/{iteration}/{generation}"
        return hmac.digest(self._secret, name.encode(), "sha256").hex()
