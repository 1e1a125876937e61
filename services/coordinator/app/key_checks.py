"""Ends the sessions of a runner whose key was revoked or has expired.

api is asked about each key with an open session, as often as its answers are cached for. While api does not answer, no
session is ended. A session that was opened with a certificate has no key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from services.chassis.grpc.errors import DependencyUnavailable, Refusal
from services.chassis.session.registry import SessionRegistry
from services.chassis.telemetry.logs import logger

log = logger(__name__)

_AT_ONCE: Final = 50
# Raises a Refusal when the key of this id is no longer valid.
Confirm = Callable[[str], Awaitable[None]]


async def check_keys(confirm: Confirm, registry: SessionRegistry, every_seconds: float) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        key_ids = sorted({key_id for each in registry.sessions if (key_id := each.data.key_id)})
        for start in range(0, len(key_ids), _AT_ONCE):
            await asyncio.gather(*(_check(confirm, registry, each) for each in key_ids[start : start + _AT_ONCE]))


async def _check(confirm: Confirm, registry: SessionRegistry, key_id: str) -> None:
    try:
        await confirm(key_id)
    except DependencyUnavailable as failure:
        log.warning("a runner's key cannot be checked", key_id=key_id, error=str(failure))
    except Refusal as refused:
        ended = [each for each in registry.sessions if each.data.key_id == key_id]
        log.warning("a runner's key is no longer valid", key_id=key_id, sessions=len(ended))
        for session in ended:
            session.close(refused.reason, "the key that opened this session was revoked or has expired")
