"""Recognises the system key in a service that keeps no keys, by the hash in the settings.

Any other text that has the form of a key is an identity without rights: the guard answers ROLE_REQUIRED, without
asking the service that keeps the keys.

Hazard: a revoked system key is accepted here until the process is started with another hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Final

from services.chassis.grpc.errors import Refusal
from services.chassis.identity.callers import ANONYMOUS, CallerKind, Identity, KeyReader
from services.chassis.process.naming import KEY_PREFIX

_KEY: Final = re.compile(rf"{KEY_PREFIX}_(?!{CallerKind.SYSTEM.value}_)[a-z]+_[0-9a-f]{{64}}")


class SystemKey(KeyReader):
    """`others` reads all other keys, if it is given."""

    def __init__(self, hash_file: Path | None, others: KeyReader | None = None) -> None:
        """The file holds the SHA-256 of the key in hexadecimal. None: the system key is not recognised."""
        self._hash = "" if hash_file is None else hash_file.read_text(encoding="ascii").strip()
        self._others = others

    async def identify(self, key: str) -> Identity:
        if hmac.compare_digest(hash_of(key), self._hash):
            return Identity(CallerKind.SYSTEM, "system")
        if self._others is not None:
            return await self._others.identify(key)
        if _KEY.fullmatch(key):
            return ANONYMOUS
        raise Refusal("KEY_INVALID", "this service does not know the key in the authorization")


def hash_of(key: str) -> str:
    """The hash in the form of the file."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
