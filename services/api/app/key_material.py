"""Makes API keys and their hashes. Only the hash of a key is stored.

The key of a request with a request_id is derived from the request and from a secret that all replicas read from a
file. So a caller that lost the first answer and repeats the request gets the same key, although the key is stored
nowhere. The secret is not in the database, so that the database alone is not enough to derive a key.

Hazard: after the secret has changed, a repeat is refused as REQUEST_ID_REUSED, because the same key cannot be derived
again. Revoke the key whose answer was lost, and create another one under a new request_id.
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
        """Uses the first line. The file may be the service secret's, whose first line signs."""
        secret = path.read_bytes().strip().partition(b"\n")[0].rstrip()
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the secret in {path} has fewer than {SECRET_BYTES_MIN} bytes")
        return cls(secret)

    def mint(self, kind: str, workspace: str, request_id: str, *content: str) -> Minted:
        """Makes a key of this kind (a role). With the same request_id, two requests are the same when kind, workspace
        and `content` are equal. Without a request_id, each call makes another key.
        """
        if not request_id:
            return Minted(uuid.uuid4(), mint_key(kind))
        # The id depends on neither the content nor the secret, so that a second request with other content is noticed,
        # and a repeat after a change of the secret makes no second key. Ids are not secret.
        id_digest = hashlib.sha256(canonical(["api-key-id", workspace, request_id])).digest()
        key_id = uuid.UUID(bytes=id_digest[:16], version=4)
        parts = ["api-key", workspace, request_id, kind, *content]
        secret = hmac.digest(self._secret, canonical(parts), "sha256").hex()
        return Minted(key_id, f"{KEY_PREFIX}_{kind}_{secret}")


def mint_key(kind: str) -> str:
    """256 random bits. People and scanners for leaked secrets recognise the prefix."""
    return f"{KEY_PREFIX}_{kind}_{secrets.token_hex(32)}"


def key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
