"""Bounds the memory of the requests that are being served.

A request stays in memory until its call is done, as it came and as it was read: a start that waits for the check of its
input, or for the end of its execution, holds up to 35 times what was sent. So each larger request takes room for its
workspace until its call is done (shares.py). One that finds no room is refused before it is parsed.

Our own services are not counted. They send on what was counted where it arrived.
"""

from __future__ import annotations

import asyncio
from typing import Final

from services.chassis.grpc.errors import QuotaViolation, Refusal
from services.chassis.grpc.limits import KIBIBYTE, MEBIBYTE
from services.chassis.grpc.shares import Shares

# A smaller request is not counted. All calls of a server with such requests hold less than the room of the others.
UNCOUNTED_BYTES_MAX: Final = 1 * KIBIBYTE
# Measured with requests of 256 KiB of free JSON, which is what takes most: nested lists, empty objects, objects of one
# member, numbers and texts take 35, 34, 25, 6 and 3 times their size. Each of their values and members begins with the
# tag of a field with the number 1, and takes up to 180 bytes beside its text.
_TAG: Final = b"\x0a"
_BYTES_PER_TAG: Final = 180
_BYTES_PER_BYTE: Final = 3
_RETRY_SECONDS: Final = 1.0


def held_bytes(raw: bytes) -> int:
    """What a request holds at most while it is served. This is quick, and too much for texts with many line ends."""
    return _BYTES_PER_BYTE * len(raw) + _BYTES_PER_TAG * raw.count(_TAG)


class HeldRequests:
    def __init__(self, bytes_max: int) -> None:
        self._room = Shares(bytes_max // KIBIBYTE)
        self._room_text = f"{bytes_max // MEBIBYTE} MiB"

    def hold(self, raw: bytes, owner: str) -> None:
        """Take room for the request until the call that this task serves is done, or raise a Refusal."""
        if len(raw) <= UNCOUNTED_BYTES_MAX:
            return
        room = held_bytes(raw) // KIBIBYTE
        if not self._room.take(owner, places=room):
            raise _exceeded(self._room_text)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._room.give_back(owner, places=room))


def _exceeded(room: str) -> Refusal:
    message = (
        f"large requests of this workspace are being served, and they share {room} of memory with those of others:"
        " repeat this one when some have ended, or call another replica"
    )
    quota = [QuotaViolation("this workspace", message)]
    return Refusal("LARGE_REQUESTS_EXCEEDED", message, retry_after=_RETRY_SECONDS, quota=quota)
