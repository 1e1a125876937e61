"""Bounds the memory of large messages: of requests that are being served, and of answers that wait to be read.

A request stays in memory until its call is done, as it came and as it was parsed: a start that waits for the check of
its input, or for the end of its execution, holds up to 35 times what was sent. An answer stays until its caller has
read it, and a caller may take its time. So each larger message takes room for its workspace (shares.py). A request that
finds no room is refused before it is parsed, an answer before it is sent.

Our own services are not counted. They read what they ask for, and send on what was counted where it arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from services.chassis.grpc.errors import QuotaViolation, Refusal
from services.chassis.grpc.limits import KIBIBYTE
from services.chassis.grpc.shares import Shares
from services.chassis.identity.callers import CallerKind, caller

# What holds less is not counted. All calls of a server together hold less in such messages than in the others.
_UNCOUNTED_BYTES_MAX: Final = 4 * KIBIBYTE
# Measured with requests of 256 KiB of free JSON, which is what takes most: nested lists, empty objects, objects of one
# member, numbers and texts take 35, 34, 25, 6 and 3 times their size. Each of their values and members begins with the
# tag of a field with the number 1, and takes up to 180 bytes beside its text.
_TAG: Final = b"\x0a"
_BYTES_PER_TAG: Final = 180
_BYTES_PER_BYTE: Final = 3
# An answer is in memory as our bytes, as those of gRPC, and perhaps as the record from which it was made.
_COPIES: Final = 3
_RETRY_SECONDS: Final = 1.0


def held_by_request(raw: bytes) -> int:
    """What a request holds at most while it is served. This is quick, and too much for texts with many line ends."""
    return _BYTES_PER_BYTE * len(raw) + _BYTES_PER_TAG * raw.count(_TAG)


def held_by_answer(raw: bytes) -> int:
    return _COPIES * len(raw)


class HeldMessages:
    def __init__(self, bytes_max: int, reason: str, what: str) -> None:
        """The refusals have this reason, and name the messages as `what`."""
        self._room = Shares(bytes_max // KIBIBYTE)
        self._reason = reason
        self._what = what

    def hold(self, held_bytes: int) -> None:
        """Take room for the caller of this task until the task is done, or raise a Refusal."""
        if held_bytes <= _UNCOUNTED_BYTES_MAX or (who := caller()).kind is CallerKind.SERVICE:
            return
        owner = who.tenant
        places = self._take(held_bytes, owner)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: self._room.give_back(owner, places=places))

    @contextmanager
    def held(self, held_bytes: int, owner: str) -> Iterator[None]:
        """Take room for as long as the block lasts, or raise a Refusal."""
        if held_bytes <= _UNCOUNTED_BYTES_MAX:
            yield
            return
        places = self._take(held_bytes, owner)
        try:
            yield
        finally:
            self._room.give_back(owner, places=places)

    def _take(self, held_bytes: int, owner: str) -> int:
        places = held_bytes // KIBIBYTE
        if not self._room.take(owner, places=places):
            message = f"{self._what} of this workspace take all the memory that they may: end some, or repeat it later"
            quota = [QuotaViolation("this workspace", message)]
            raise Refusal(self._reason, message, retry_after=_RETRY_SECONDS, quota=quota)
        return places
