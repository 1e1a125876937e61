"""A clock that a test moves instead of waiting for it."""

import asyncio
import heapq
import itertools
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time stands still until `advance`, and sleepers wake in the order of their due times."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._wall = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._wall

    def epoch_ns(self) -> int:
        whole = self._wall - datetime(1970, 1, 1, tzinfo=UTC)
        return (whole.days * 86_400 + whole.seconds) * 1_000_000_000 + whole.microseconds * 1_000

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    @property
    def sleepers(self) -> int:
        return sum(not woken.done() for _, _, woken in self._sleepers)

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("monotonic time does not go back, use shift_wall")
        self._elapsed += seconds
        self._wall += timedelta(seconds=seconds)
        while self._sleepers and self._sleepers[0][0] <= self._elapsed:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():  # else its sleeper was cancelled
                woken.set_result(None)

    def shift_wall(self, seconds: float) -> None:
        """Change the wall time alone, as an administrator or NTP does."""
        self._wall += timedelta(seconds=seconds)
