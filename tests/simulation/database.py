"""The way of a statement from a process to the database and back.

The statement takes effect at one moment, in the world: the process that sent it may be gone by then. On its way it may
be refused (the database is away), its answer may be lost after it took effect, or it may take effect only after its
sender was told that it failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any, TypeVar

from services.chassis.grpc.errors import DependencyUnavailable
from tests.simulation.loop import Host, VirtualLoop, present_host

T = TypeVar("T")


class Stage(Enum):
    """Where a process may be ended."""

    BEFORE_COMMIT = "before the commit"
    AFTER_COMMIT = "after the commit"


class Fate(Enum):
    DONE = "done"
    REFUSED = "refused"
    ANSWER_LOST = "answer lost"
    LATE = "late"


class SimulatedDatabase:
    def __init__(self, loop: VirtualLoop, random: Random, note: Callable[[str], None]) -> None:
        self._loop = loop
        self._random = random
        self._note = note
        self.is_away = False
        # The share of statements that get one of the bad fates.
        self.trouble = 0.0
        self.delay_max = 0.002
        # Called after each statement, and where a process may be ended.
        self.committed: Callable[[], None] = lambda: None
        self.reached: Callable[[Host, Stage], None] = lambda host, stage: None

    async def run(self, work: Callable[[], T]) -> T:
        """Run one statement for the present process. Raises DependencyUnavailable, perhaps after the commit."""
        loop, host = self._loop, present_host()
        answer: asyncio.Future[T] = loop.create_future()
        fate = self._fate()
        if fate is Fate.REFUSED:
            loop.call_as(loop.world, self._delay(), self._fail, answer)
        elif fate is Fate.LATE:
            loop.call_as(loop.world, self._delay(), self._fail, answer)
            loop.call_as(loop.world, self._random.uniform(0.01, 1.0), self._take_effect, host, work, None, fate)
        else:
            self.reached(host, Stage.BEFORE_COMMIT)
            loop.call_as(loop.world, self._delay(), self._take_effect, host, work, answer, fate)
        return await answer

    def _fate(self) -> Fate:
        if self.is_away:
            return Fate.REFUSED
        if self.trouble and self._random.random() < self.trouble:
            return self._random.choice([Fate.REFUSED, Fate.ANSWER_LOST, Fate.ANSWER_LOST, Fate.LATE])
        return Fate.DONE

    def _delay(self) -> float:
        return self._random.uniform(0.0002, self.delay_max)

    def _take_effect(self, host: Host, work: Callable[[], Any], answer: Any, fate: Fate) -> None:
        if self.is_away:
            self._fail(answer)
            return
        result = work()
        self._note(f"{host.name} {work.__qualname__} {fate.value}")
        self.committed()
        if answer is None:
            return
        if fate is Fate.ANSWER_LOST:
            self._loop.call_as(self._loop.world, self._delay(), self._fail, answer)
        else:
            self._loop.call_as(self._loop.world, self._delay(), self._answer, answer, result)
        self.reached(host, Stage.AFTER_COMMIT)

    @staticmethod
    def _fail(answer: asyncio.Future[Any] | None) -> None:
        if answer is not None and not answer.done():
            answer.set_exception(DependencyUnavailable("the database", "out of reach in this simulation"))

    @staticmethod
    def _answer(answer: asyncio.Future[Any], result: Any) -> None:
        if not answer.done():
            answer.set_result(result)
