"""Effect keys: all attempts at the same work have the same key, so a third party can recognise a repeated effect.

A key is the HMAC-SHA256 of (execution, node, iteration, generation) under the secret of the workspace. Runners never
get the secret, so nobody can make the key of another's work.
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
