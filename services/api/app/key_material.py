"""How a key looks, how it comes about, and the hash by which it is known: the key itself is kept nowhere.

A key that is asked for under a request_id is derived from that and a secret that all replicas have from a file, so that
a repeat (whose first answer was lost) gets the same one although nobody has kept it. The database alone is not enough
to derive any, which is why the secret is not kept there.
Hazard: after the secret has changed, a repeat can no longer be answered: it is refused as REQUEST_ID_REUSED.
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
        """By its first line: of a service secret that is being changed, the one that signs."""
        secret = path.read_bytes().strip().partition(b"\n")[0].rstrip()
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the secret in {path} has less than {SECRET_BYTES_MIN} characters")
        return cls(secret)

    def mint(self, kind: str, workspace: str, request_id: str, *content: str) -> Minted:
        """`content`: what makes two requests the same, apart from kind and workspace."""
        if not request_id:
            return Minted(uuid.uuid4(), mint_key(kind))
        # The id speaks of the request alone, so that two with other content meet.
        key_id = uuid.UUID(bytes=self._derived("api-key-id", workspace, request_id)[:16], version=4)
        return Minted(
            key_id,
            f"{KEY_PREFIX}_{kind}_{self._derived('api-key', workspace, request_id, kind, *content).hex()}",
        )

    def _derived(self, *parts: str) -> bytes:
        return hmac.digest(self._secret, canonical(list(parts)), "sha256")


def mint_key(kind: str) -> str:
    """256 random bits; the prefix tells people, and scanners for leaked secrets, what they have in hand."""
    return f"{KEY_PREFIX}_{kind}_{secrets.token_hex(32)}"


def key_hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
