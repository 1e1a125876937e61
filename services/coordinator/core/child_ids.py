"""The ids of children. They have the form of all execution ids (UUIDv7), and follow from the run that starts the child.

The time is in front, because rows are kept by the month that the id names. The rest is a hash of the run's id, so an
execution that starts many children in one millisecond gives each an id of its own.
"""

import hashlib

from services.coordinator.core.values import Instant

_VERSION = 0x7000
_VARIANT = 0b10 << 62


def child_id(execution_id: str, run: int, now: Instant) -> str:
    rest = int.from_bytes(hashlib.sha256(f"{execution_id}.{run}".encode()).digest()[:10], "big")
    high = (now // 1_000) << 16 | _VERSION | rest >> 68
    text = f"{high << 64 | _VARIANT | rest & (1 << 62) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
