"""Whose key it is: hashed at the door, looked up, and trusted for at most a second.

A change (revocation, closing of a workspace) is heard at once from the replica that made it and, through the
database's notifications, from every other; the second is for a notification that was lost. While the database is
away nobody is let in on an old answer.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import Final, NamedTuple

from services.api.core.json_values import digest
from services.api.handler import refusals
from services.api.handler.ports import KeyRecord, Keys
from services.chassis.clock import Clock
from services.chassis.identity import Identity, Kind

TRUSTED_SECONDS: Final = 1.0
CACHED_MAX: Final = 10_000
# Longer ones are no keys: not worth hashing.
KEY_CHARACTERS_MAX: Final = 256
_KINDS: Final = {"SYSTEM": Kind.SYSTEM, "RUNNER": Kind.RUNNER}


class _Known(NamedTuple):
    identity: Identity
    key: KeyRecord
    read_at: float
    key_hash: bytes


class Authenticator:
    """The KeyReader of the gRPC server."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._titles: OrderedDict[str, str] = OrderedDict()
        # Rises with each forgetting: what was read before it is not kept after it.
        self._generation = 0

    async def identify(self, key: str) -> Identity:
        if len(key) > KEY_CHARACTERS_MAX:
            raise refusals.key_invalid()
        key_hash = digest(key.encode("utf-8", "replace"))
        known = self._known.get(key_hash)
        if known is None or self._clock.monotonic() - known.read_at > TRUSTED_SECONDS:
            known = await self._read(key_hash)
        # The dictionary has found it by its hash; equality is settled in constant time all the same.
        if not hmac.compare_digest(known.key_hash, key_hash):
            raise refusals.key_invalid()
        if self._has_expired(known.key):
            raise refusals.key_expired()
        return known.identity

    async def record_of(self, key_hash: bytes) -> KeyRecord | None:
        """For other services that were shown a key; read anew, because they cache the answer themselves."""
        key = await self._keys.find(key_hash)
        return key if key is not None and _is_good(key) and not self._has_expired(key) else None

    def title(self, key_id: str) -> str:
        """Of a key that was identified; what people are told of who did something."""
        return self._titles.get(key_id, "")

    def forget(self, key_hash: bytes) -> None:
        self._generation += 1
        self._known.pop(key_hash, None)

    def forget_all(self) -> None:
        self._generation += 1
        self._known.clear()

    def _has_expired(self, key: KeyRecord) -> bool:
        return key.expire_time is not None and key.expire_time <= self._clock.now()

    async def _read(self, key_hash: bytes) -> _Known:
        generation, asked_at = self._generation, self._clock.monotonic()
        key = await self._keys.find(key_hash)
        if key is None or not _is_good(key):
            self._known.pop(key_hash, None)
            raise refusals.key_invalid()
        kind = _KINDS.get(key.role, Kind.MEMBER)
        role = key.role if kind is Kind.MEMBER else ""
        known = _Known(Identity(kind, key.key_id, key.workspace, role), key, asked_at, key_hash)
        if generation == self._generation:
            self._known[key_hash] = known
            if len(self._known) > CACHED_MAX:
                self._known.popitem(last=False)
        self._titles[key.key_id] = key.title
        if len(self._titles) > CACHED_MAX:
            self._titles.popitem(last=False)
        return known


def _is_good(key: KeyRecord) -> bool:
    return key.revoke_time is None and not key.is_workspace_closed
