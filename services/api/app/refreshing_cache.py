"""A bounded cache of values that are read at most once at a time and never older than stated.

After half of its time, an entry is read again in the background, so that under steady use no caller waits. A key that
is forgotten during a read does not keep the result, which may be older than the change that made it forgotten. Hazard:
a refusal is not cached, so a key without a value is read each time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from services.chassis.process.clock import Clock

Key = TypeVar("Key", bound=Hashable)
Cached = TypeVar("Cached")


class _Entry(NamedTuple, Generic[Cached]):
    value: Cached
    # The time at which the read began.
    read_at: float


class RefreshingCache(Generic[Key, Cached]):
    def __init__(
        self, read: Callable[[Key], Awaitable[Cached]], clock: Clock, *, trusted_seconds: float, entries_max: int
    ) -> None:
        self._read = read
        self._clock = clock
        self._trusted_seconds = trusted_seconds
        self._entries_max = entries_max
        self._entries: OrderedDict[Key, _Entry[Cached]] = OrderedDict()
        self._reading: dict[Key, asyncio.Task[Cached]] = {}

    def known(self, key: Key) -> Cached | None:
        """The value, if it need not be read first."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        age = self._clock.monotonic() - entry.read_at
        if age > self._trusted_seconds / 2:
            self._read_again(key)
        return entry.value if age <= self._trusted_seconds else None

    async def get(self, key: Key) -> Cached:
        known = self.known(key)
        # The read is shared, so a caller that is cancelled must not cancel it.
        return await asyncio.shield(self._read_again(key)) if known is None else known

    def forget(self, key: Key) -> None:
        self._entries.pop(key, None)
        self._reading.pop(key, None)

    def forget_where(self, is_meant: Callable[[Key], bool]) -> None:
        for key in [key for key in {*self._entries, *self._reading} if is_meant(key)]:
            self.forget(key)

    def forget_all(self) -> None:
        self._entries.clear()
        self._reading.clear()

    def _read_again(self, key: Key) -> asyncio.Task[Cached]:
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.ensure_future(self._keep(key, self._clock.monotonic()))
            self._reading[key] = reading
            reading.add_done_callback(_look_at)
        return reading

    async def _keep(self, key: Key, asked_at: float) -> Cached:
        own = asyncio.current_task()
        try:
            value = await self._read(key)
        except Exception:
            if self._reading.get(key) is own:
                self.forget(key)
            raise
        if self._reading.get(key) is own:
            del self._reading[key]
            self._entries[key] = _Entry(value, asked_at)
            self._entries.move_to_end(key)
            if len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)
        return value


def _look_at(reading: asyncio.Task[Cached]) -> None:
    """Retrieve the exception of a failed background read, or asyncio would log it. The next caller reads again."""
    if not reading.cancelled():
        reading.exception()
