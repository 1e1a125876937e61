"""How a key looks, and the hash by which it is known: the key itself is kept nowhere."""

from __future__ import annotations

import secrets

from services.api.core.json_values import digest


def mint_key(kind: str) -> str:
    """256 random bits; the prefix tells people, and scanners for leaked secrets, what they have in hand."""
    return f"wl_{kind}_{secrets.token_hex(32)}"


def key_hash(key: str) -> bytes:
    return digest(key.encode())
