"""What a caller may leave in a server's memory: bytes of unanswered reports, and leases.

A report is kept until its commit, and while the database is slow or away nothing else says how much a holder may bring
meanwhile. Where there is no room left, the next frame stays in the pipe and in the end with its holder, which is not at
fault: a thousand runs that end in an outage, with outputs of 256 KiB each, are more than one stream has room for. A
frame is read whole, so a stream may go beyond its room by one.

What a session brought stays in its caller's room when its stream is gone, as long as the session is kept by whoever is
to answer it (`forget`, when it is not): nobody makes room by attaching anew. Leases, which are small, are counted for a
key as a whole.
"""

import asyncio
import math
from weakref import finalize

# Of one stream. 4,000 reports in flight of 16 KiB each; with larger ones a stream is as slow as their commits.
STREAM_BYTES_MAX = 64 * 1024 * 1024
# Of all streams of one key. Our own services have no such bound: there are as many of them as the installation wants.
KEY_BYTES_MAX = 256 * 1024 * 1024
# Leases that all streams of one key name as held: two hundred runners of a thousand places each, all at work.
KEY_LEASES_MAX = 200_000


class CallerRoom:
    """Of all sessions of one caller."""

    __slots__ = ("__weakref__", "_bytes_max", "_freed", "freed_at", "held_bytes", "leases", "leases_max")

    def __init__(self, bytes_max: float = math.inf, leases_max: float = math.inf) -> None:
        self._bytes_max = bytes_max
        self.leases_max = leases_max
        self.leases = 0
        self._freed = asyncio.Event()
        self.held_bytes = 0
        # When anything of it was last answered.
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
        """Those who wait now look again."""
        self._freed.set()
        self._freed.clear()

    async def freed(self) -> None:
        await self._freed.wait()


class StreamRoom:
    """Of one session, within its caller's."""

    __slots__ = ("_bytes_max", "_caller", "_freed_at", "_held_bytes", "_is_closed", "_leases", "is_awaited")

    def __init__(self, caller: CallerRoom, bytes_max: int = STREAM_BYTES_MAX) -> None:
        self._caller = caller
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._leases = 0
        self._freed_at = -math.inf
        self._is_closed = False
        # The stream is not read at present.
        self.is_awaited = False

    @property
    def is_full(self) -> bool:
        return not self._is_closed and (self._held_bytes >= self._bytes_max or self._caller.is_full)

    @property
    def freed_at(self) -> float:
        """When answers last went out that it waits for."""
        return self._freed_at if self._held_bytes >= self._bytes_max else self._caller.freed_at

    def hold(self, held_bytes: int, now: float) -> None:
        """All that its unanswered reports are at present."""
        if (more := held_bytes - self._held_bytes) == 0:
            return
        self._held_bytes = held_bytes
        if more < 0:
            self._freed_at = now
        self._caller.change(more, now)

    def hold_leases(self, leases: int) -> str:
        """All that the session remembers at present; why these are too many, or "".

        Only whoever brings more is refused: the others have had theirs before, and are at work on them.
        """
        caller = self._caller
        more = leases - self._leases
        caller.leases += more
        self._leases = leases
        if more > 0 and caller.leases > caller.leases_max:
            return f"at most {caller.leases_max} leases can be held here with one key; use another key"
        return ""

    async def wait(self) -> None:
        """Until there is some, or the stream is over."""
        self.is_awaited = True
        try:
            while self.is_full:
                await self._caller.freed()
        finally:
            self.is_awaited = False

    def close(self) -> None:
        """The stream is over; what it brought waits on."""
        self._is_closed = True
        self._caller.wake()

    def forget(self) -> None:
        """Nobody has anything of the session any more, answered or not."""
        self._caller.change(-self._held_bytes, self._caller.freed_at)
        self._held_bytes = 0
        self.hold_leases(0)

    def forget_with(self, session: object) -> None:
        """When that is collected, in whichever thread."""
        finalize(session, _forget, asyncio.get_running_loop(), self).atexit = False


def _forget(loop: asyncio.AbstractEventLoop, room: StreamRoom) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(room.forget)
