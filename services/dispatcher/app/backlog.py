"""Items that a background loop commits in batches. Each is kept until its batch is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from services.chassis.grpc.errors import DependencyUnavailable
from services.chassis.process.backoff import Backoff
from services.chassis.process.batcher import Level
from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger

log = logger(__name__)
Item = TypeVar("Item")


class Backlog(Generic[Item]):
    def __init__(
        self, what: str, commit: Callable[[list[Item]], Awaitable[None]], clock: Clock, *, items_per_batch: int = 500
    ) -> None:
        """`what` names the items in the log. A batch whose `commit` raises DependencyUnavailable is tried again."""
        self.what = what
        self._away = f"{what} wait for the database"
        self._commit = commit
        self._clock = clock
        self._items_per_batch = items_per_batch
        self._items: deque[Item] = deque()
        self._wake = Level()

    def add(self, items: Iterable[Item]) -> None:
        self._items.extend(items)
        self._wake.set()

    async def idle(self) -> None:
        """Wait until everything is committed."""
        while self._items:
            await self._clock.sleep(0.01)

    async def run(self) -> None:
        backoff = Backoff()
        while True:
            await self._wake.wait()
            try:
                await self.run_once()
                backoff.reset()
            except DependencyUnavailable as failure:
                log.warning(self._away, error=str(failure))
                self._wake.set()
                await self._clock.sleep(backoff.next())

    async def run_once(self) -> None:
        """Commit until nothing is left. Raises DependencyUnavailable; the uncommitted rest is kept."""
        while self._items:
            batch = list(islice(self._items, self._items_per_batch))
            await self._commit(batch)
            for _ in batch:
                self._items.popleft()
