"""Ends the sessions of a runner whose key was revoked or has expired.

api is asked about each key with an open session, as often as its answers are cached for. While api does not answer, no
session is ended. A session that was opened with a certificate has no key.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.process.clock import Clock
from services.chassis.session.registry import SessionRegistry
from services.chassis.telemetry.logs import logger

log = logger(__name__)

_AT_ONCE: Final = 50


class Keys(Protocol):
    async def confirm(self, key_id: str) -> None:
        """Raises a Refusal when the key is no longer valid."""
        ...


class KeyCheck:
    def __init__(self, keys: Keys, registry: SessionRegistry, clock: Clock, every_seconds: float) -> None:
        self._keys = keys
        self._registry = registry
        self._clock = clock
        self._every_seconds = every_seconds

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._every_seconds)
            await self.run_once()

    async def run_once(self) -> None:
        key_ids = sorted({key_id for each in self._registry.sessions if (key_id := each.data.key_id)})
        for start in range(0, len(key_ids), _AT_ONCE):
            await asyncio.gather(*(self._check(key_id) for key_id in key_ids[start : start + _AT_ONCE]))

    async def _check(self, key_id: str) -> None:
        try:
            await self._keys.confirm(key_id)
        except DependencyUnavailable as failure:
            log.warning("a runner's key cannot be checked", key_id=key_id, error=str(failure))
        except Refusal as refused:
            ended = [each for each in self._registry.sessions if each.data.key_id == key_id]
            log.warning("a runner's key is no longer valid", key_id=key_id, sessions=len(ended))
            for session in ended:
                session.close(refused.reason, "the key that opened this session was revoked or has expired")
