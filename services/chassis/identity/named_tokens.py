"""Tokens that name one thing and prove that a holder of the secret gave them out.

A token is "<name>.<hexadecimal HMAC-SHA256 of the purpose and the name>". Nothing is stored for it, so a token is valid
as long as the thing that it names. The purpose keeps a token for one thing from being taken for another.
"""

from __future__ import annotations

import hmac
from typing import Final

_MARK: Final = "."


class NamedTokens:
    def __init__(self, secret: bytes, purpose: str) -> None:
        self._secret = secret
        self._purpose = purpose

    def of(self, name: str) -> str:
        proof = hmac.digest(self._secret, f"{self._purpose} {name}".encode("utf-8", "replace"), "sha256")
        return f"{name}{_MARK}{proof.hex()}"

    def is_genuine(self, token: str) -> bool:
        expected = self.of(name_in(token))
        return hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def name_in(token: str) -> str:
    """What the token names, whether it is genuine or not; "" if it names nothing."""
    return token.rpartition(_MARK)[0]
