"""The ids of children. They have the form of all execution ids (UUIDv7), and follow from the run that starts the child.

The time is in front, because rows and outputs are kept by the month that the id names. It is never before the time in
the id of the parent, whatever the clocks say. So the outputs of a child are kept for as long as its parent.

The rest is a hash of the run's id, so an execution that starts many children in one millisecond gives each an id of its
own.
"""

import hashlib

from services.coordinator.core.values import Instant

_VERSION = 0x7000
_VARIANT = 0b10 << 62


def child_id(execution_id: str, run: int, now: Instant) -> str:
    rest = int.from_bytes(hashlib.sha256(f"{execution_id}.{run}".encode()).digest()[:10], "big")
    parent_millis = int(execution_id.replace("-", "")[:12], 16)
    high = max(now // 1_000, parent_millis) << 16 | _VERSION | rest >> 68
    text = f"{high << 64 | _VARIANT | rest & (1 << 62) - 1:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
