"""The system key at a port whose service keeps no keys: known by its hash, which the process is told.

Every other key that has the form of one is somebody's without any right here, whoever it belongs to: the guard answers
ROLE_REQUIRED, without asking the service that keeps them.
Hazard: a system key that was revoked is known here until the process is told another.
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


class SystemKey:
    """A KeyReader; `others` knows all other keys, where there is such a one."""

    def __init__(self, hash_file: Path | None, others: KeyReader | None = None) -> None:
        """The file holds the SHA-256 of the key in hexadecimal. None: no system key is known."""
        self._hash = "" if hash_file is None else hash_file.read_text(encoding="ascii").strip()
        self._others = others

    async def identify(self, key: str) -> Identity:
        if hmac.compare_digest(hash_of(key), self._hash):
            return Identity(CallerKind.SYSTEM, "system")
        if self._others is not None:
            return await self._others.identify(key)
        if _KEY.fullmatch(key):
            return ANONYMOUS
        raise Refusal("KEY_INVALID", "the authorization is no key that this service knows")


def hash_of(key: str) -> str:
    """As the file has it."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
