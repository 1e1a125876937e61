"""Makes API keys and their hashes. Only the hash of a key is stored.

A key for a request_id is derived from the request_id and a secret that all replicas read from a file. So a repeat,
whose first answer was lost, gets the same key although it is stored nowhere. The secret is not in the database, so that
the database alone is not enough to derive a key.
Hazard: after the secret has changed, a repeat is refused as REQUEST_ID_REUSED.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from pathlib import Path
from typing import Final, NamedTuple

from services.chassis.process.naming import KEY_PREFIX
from windlass.definition.json_values import canonical

SECRET_BYTES_MIN: Final = 16


class Minted(NamedTuple):
    key_id: uuid.UUID
    key: str


class KeyMint:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def from_file(cls, path: Path) -> KeyMint:
        """Uses the first line. While a service secret is being changed, this is the one that signs."""
        secret = path.read_bytes().strip().partition(b"\n")[0].rstrip()
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the secret in {path} has less than {SECRET_BYTES_MIN} characters")
        return cls(secret)

    def mint(self, kind: str, workspace: str, request_id: str, *content: str) -> Minted:
        """Two requests are the same when kind, workspace and `content` are equal."""
        if not request_id:
            return Minted(uuid.uuid4(), mint_key(kind))
        # The id depends on the request_id alone, so that a second request with other content is noticed.
        key_id = uuid.UUID(bytes=self._derived("api-key-id", workspace, request_id)[:16], version=4)
        secret = self._derived("api-key", workspace, request_id, kind, *content).hex()
        return Minted(key_id, f"{KEY_PREFIX}_{kind}_{secret}")

    def _derived(self, *parts: str) -> bytes:
        return hmac.digest(self._secret, canonical(list(parts)), "sha256")


def mint_key(kind: str) -> str:
    """256 random bits. People and scanners for leaked secrets recognise the prefix."""
    return f"{KEY_PREFIX}_{kind}_{secrets.token_hex(32)}"


def key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
