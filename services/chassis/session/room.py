"""The limits of the memory that a caller takes in a server: bytes of unanswered reports, and leases.

A report is kept until its commit, and only these limits say how much a holder may send while the database is slow or
away. A stream without room is not read, so that the next frames stay with the holder. That is backpressure and no
fault: a thousand runs that end in an outage, with outputs of 256 KiB each, need more room than one stream has. A frame
is read whole, so a stream may go beyond its room by one frame.

When a stream is gone, its reports still count for the caller until they are answered or the session is forgotten, so
that attaching again makes no room. Leases are small, and are counted for a key as a whole.
"""

import asyncio
import math
from weakref import finalize


class CallerRoom:
    """The room for all sessions of one caller."""

    __slots__ = ("__weakref__", "_bytes_max", "_freed", "freed_at", "held_bytes", "leases", "leases_max")

    def __init__(self, bytes_max: float = math.inf, leases_max: float = math.inf) -> None:
        self._bytes_max = bytes_max
        self.leases_max = leases_max
        self.leases = 0
        self._freed = asyncio.Event()
        self.held_bytes = 0
        # The time at which anything in it was last answered.
        self.freed_at = -math.inf

    @property
    def is_full(self) -> bool:
        return self.held_bytes >= self._bytes_max

    def change(self, bytes_more: int, now: float) -> None:
        self.held_bytes += bytes_more
        if bytes_more < 0:
            self.freed_at = now
            self.wake()

    def wake(self) -> None:
        """Make the streams that wait look again."""
        self._freed.set()
        self._freed.clear()

    async def freed(self) -> None:
        await self._freed.wait()


class StreamRoom:
    """The room for one session. It is never larger than its caller's."""

    __slots__ = ("_bytes_max", "_caller", "_freed_at", "_held_bytes", "_is_closed", "_leases", "is_awaited")

    def __init__(self, caller: CallerRoom, bytes_max: int) -> None:
        self._caller = caller
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._leases = 0
        self._freed_at = -math.inf
        self._is_closed = False
        # True while the stream is not read.
        self.is_awaited = False

    @property
    def is_full(self) -> bool:
        return not self._is_closed and (self._held_bytes >= self._bytes_max or self._caller.is_full)

    @property
    def freed_at(self) -> float:
        """The last time at which room became free that this stream waits for."""
        return self._freed_at if self._held_bytes >= self._bytes_max else self._caller.freed_at

    def hold(self, held_bytes: int, now: float) -> None:
        """Set the present size of its unanswered reports."""
        if (more := held_bytes - self._held_bytes) == 0:
            return
        self._held_bytes = held_bytes
        if more < 0:
            self._freed_at = now
        self._caller.change(more, now)

    def hold_leases(self, leases: int) -> str:
        """Set the present number of its leases. Returns why that is too many, or "".

        Only a session that brings more leases is refused. The others are at work on theirs.
        """
        caller = self._caller
        more = leases - self._leases
        caller.leases += more
        self._leases = leases
        if more > 0 and caller.leases > caller.leases_max:
            return f"at most {caller.leases_max} leases can be held here with one key; use another key"
        return ""

    async def wait(self) -> None:
        """Wait until there is room, or the stream is over."""
        self.is_awaited = True
        try:
            while self.is_full:
                await self._caller.freed()
        finally:
            self.is_awaited = False

    def close(self) -> None:
        """The stream is over. Its reports still wait for their answers."""
        self._is_closed = True
        self._caller.wake()

    def forget(self) -> None:
        """The session is gone, with all its reports, answered or not."""
        self._caller.change(-self._held_bytes, self._caller.freed_at)
        self._held_bytes = 0
        self.hold_leases(0)

    def forget_with(self, session: object) -> None:
        """Call `forget` when the session is garbage collected, which may happen in any thread."""
        finalize(session, _forget, asyncio.get_running_loop(), self).atexit = False


def _forget(loop: asyncio.AbstractEventLoop, room: StreamRoom) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(room.forget)
