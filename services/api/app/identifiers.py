"""The form of execution ids, and the end of message ids.

Execution ids are UUIDv7, so that newer ids sort after older ones in every service and index.

The twelve bits after the millisecond are its fraction, so the ids of one replica also rise within a millisecond.

Hazard: between replicas the order depends on their clocks. Only the order of lists relies on it.
"""

from __future__ import annotations

import hashlib
import random
import re
from typing import Final

from services.chassis.process.clock import Clock

_FORM: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_VARIANT: Final = 0b10 << 62
_DIGEST_CHARACTERS: Final = 32


class Identifiers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Ids are unique, not secret: isolation does not depend on them.
        self._random = random.Random(random.SystemRandom().getrandbits(128))
        self._last = 0

    def mint(self) -> str:
        milliseconds, rest = divmod(self._clock.epoch_ns(), 1_000_000)
        stamp = max(milliseconds << 12 | rest * 4096 // 1_000_000, self._last + 1)
        self._last = stamp
        high = (stamp >> 12) << 16 | 0x7000 | (stamp & 0xFFF)
        text = f"{high << 64 | _VARIANT | self._random.getrandbits(62):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_run_id(text: str) -> bool:
    """False: no execution that a replica can have minted has such a run."""
    execution_id, _, number = text.partition(".")
    return is_execution_id(execution_id) and number.isascii() and number.isdigit() and len(number) < 10


def is_execution_id(text: str) -> bool:
    """False: no replica can have minted this id, so no service needs to be asked."""
    return _FORM.fullmatch(text) is not None


def digest_of(content: bytes) -> str:
    """The end of the message id of a command that names a request. By this, coordinators recognise a request id that
    was used before for something else (services/coordinator/core/fold/answers.py)."""
    return hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
