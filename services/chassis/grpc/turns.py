"""Places that owners share fairly (shares.py), and for which they wait in turn when all are taken.

Owners take turns. Of those that wait for one owner the newest goes first: while an owner asks for more than its places
can serve, those that would have waited longest give up, and the others are served quickly.
"""

from __future__ import annotations

import asyncio

from services.chassis.grpc.shares import Shares


class Turns(Shares):
    """The places of one event loop. `take` takes one that is free at once."""

    def __init__(self, places: int) -> None:
        super().__init__(places)
        # The turns of each owner, with the time since which they are waited for, in the order in which they came.
        self._waiting: dict[str, dict[asyncio.Future[bool], float]] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    async def wait(self, owner: str) -> bool:
        """Take the next place of this owner. False: `end_late` has ended the wait."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.setdefault(owner, {})[turn] = loop.time()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.give_back(owner)
            raise
        finally:
            self._forget(owner, turn)

    def give_back(self, owner: str, *, places: int = 1) -> None:
        super().give_back(owner, places=places)
        for each in list(self._waiting):
            if self.take(each) and not self._call(each):
                super().give_back(each)

    def end_late(self, since: float, *, most: int) -> None:
        """End waits that began before, at most so many."""
        for turns in self._waiting.values():
            for turn, begun in turns.items():
                if begun >= since:
                    break
                if not turn.done():
                    if not most:
                        return
                    most -= 1
                    turn.set_result(False)

    def _call(self, owner: str) -> bool:
        """Give a place that was taken to the newest of the owner's, which then stands behind all others."""
        turns = self._waiting.pop(owner)
        self._waiting[owner] = turns
        for turn in reversed(turns):
            if not turn.done():
                turn.set_result(True)
                return True
        return False

    def _forget(self, owner: str, turn: asyncio.Future[bool]) -> None:
        turns = self._waiting[owner]
        del turns[turn]
        if not turns:
            del self._waiting[owner]
