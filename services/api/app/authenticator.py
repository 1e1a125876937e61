"""Finds the identity of an API key by its hash, and trusts the answer for at most one second.

A change (revocation, closing of a workspace) takes effect at once: notifications of the database reach every replica.
The second bounds the effect of a lost notification. An older answer is not used while the database is away.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from services.api.app import refusals
from services.api.app.ports import ApiKeys, KeyRecord
from services.api.app.refreshing_cache import RefreshingCache
from services.chassis.identity.callers import CallerKind, Identity, KeyReader
from services.chassis.process.clock import Clock

TRUSTED_SECONDS: Final = 1.0
CACHED_MAX: Final = 10_000
# A longer text is not a key, and is not hashed.
KEY_CHARACTERS_MAX: Final = 256
_KINDS: Final = {"SYSTEM": CallerKind.SYSTEM, "RUNNER": CallerKind.RUNNER}


class _Known(NamedTuple):
    identity: Identity
    key: KeyRecord


class Authenticator(KeyReader):
    """That of the gRPC server."""

    def __init__(self, keys: ApiKeys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._known: RefreshingCache[bytes, _Known] = RefreshingCache(
            self._read, clock, trusted_seconds=TRUSTED_SECONDS, entries_max=CACHED_MAX
        )

    def known(self, key: str) -> Identity | None:
        known = self._known.known(_hash_of(key))
        return None if known is None else self._owner(known)

    async def identify(self, key: str) -> Identity:
        return self._owner(await self._known.get(_hash_of(key)))

    async def record_of(self, key_hash: bytes) -> KeyRecord | None:
        """The record of a key that another service was given. It is not cached here, because that service caches it."""
        key = await self._keys.find(key_hash)
        return key if key is not None and _is_good(key) and not self._has_expired(key) else None

    def forget(self, key_hash: bytes) -> None:
        self._known.forget(key_hash)

    def forget_all(self) -> None:
        self._known.forget_all()

    def _owner(self, known: _Known) -> Identity:
        if self._has_expired(known.key):
            raise refusals.key_expired()
        return known.identity

    def _has_expired(self, key: KeyRecord) -> bool:
        return key.expire_time is not None and key.expire_time <= self._clock.now()

    async def _read(self, key_hash: bytes) -> _Known:
        key = await self._keys.find(key_hash)
        if key is None or not _is_good(key):
            raise refusals.key_invalid()
        kind = _KINDS.get(key.role, CallerKind.MEMBER)
        role = key.role if kind is CallerKind.MEMBER else ""
        return _Known(Identity(kind, key.key_id, key.workspace, role, key.title), key)


def _hash_of(key: str) -> bytes:
    """Only hashes are looked up, so the time of the search tells nothing about a key."""
    if len(key) > KEY_CHARACTERS_MAX:
        raise refusals.key_invalid()
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _is_good(key: KeyRecord) -> bool:
    return key.revoke_time is None and not key.is_workspace_closed
