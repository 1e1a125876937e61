"""How soon a call ends whose key is no longer valid, by a clock that the test moves.

The notification of the change is lost, other calls bring the key all the time, and each read of it takes a while.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from services.api.app.authenticator import Authenticator
from services.api.app.ports import ApiKeys, KeyRecord
from services.chassis.grpc.errors import Refusal
from services.chassis.grpc.long_calls import LongCalls
from tests.simulation.loop import START, VirtualClock, VirtualLoop

# The promise of docs/security.md.
ENDED_SECONDS_MAX = 5.0
READ_SECONDS = 0.5
BETWEEN_CALLS = 0.3


class Keys:
    """The store of one key."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.record = KeyRecord("k", "VIEWER", "w", "", START, None, None, is_workspace_closed=False)

    async def find(self, key_hash: bytes) -> KeyRecord:
        record = self.record
        await self._clock.sleep(READ_SECONDS)
        return record


class World:
    """A call that lasts for as long as its key, and the checks of its key."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()  # type: ignore[abstract] # it has what a call needs
        self.clock = VirtualClock(self.loop)
        self.keys = Keys(self.clock)
        self.authenticator = Authenticator(cast("ApiKeys", self.keys), self.clock)
        self.calls = LongCalls()
        self.ends: list[str] = []
        self.loop.create_task(self.calls.check_keys(self.authenticator))
        self.loop.create_task(self._watch())

    async def _watch(self) -> None:
        await self.authenticator.identify("key")
        try:
            await self.calls.run("key", asyncio.Event().wait())
        except Refusal as refusal:
            self.ends.append(refusal.reason)

    async def use_the_key(self) -> None:
        while True:
            self.loop.create_task(self._use_once())
            await self.clock.sleep(BETWEEN_CALLS)

    async def _use_once(self) -> None:
        with contextlib.suppress(Refusal):
            await self.authenticator.identify("key")

    def has_ended_at(self, seconds: float) -> bool:
        return self.loop.run_until(lambda: bool(self.ends), seconds)


@pytest.mark.parametrize("is_used_meanwhile", [False, True])
@pytest.mark.parametrize(
    ("change", "reason"),
    [("revoke_time", "KEY_INVALID"), ("is_workspace_closed", "KEY_INVALID"), ("expire_time", "KEY_EXPIRED")],
)
def test_a_long_call_ends_soon_after_its_key_whenever_that_is(
    change: str, reason: str, is_used_meanwhile: bool
) -> None:
    for moment in range(25):
        world = World()
        if is_used_meanwhile:
            world.loop.create_task(world.use_the_key())
        changed = 4.0 + moment / 10
        assert not world.has_ended_at(changed), "it lasts for as long as its key"
        value: Any = True if change == "is_workspace_closed" else world.clock.now()
        world.keys.record = world.keys.record._replace(**{change: value})
        assert world.has_ended_at(changed + ENDED_SECONDS_MAX), "it ends in time"
        assert world.ends == [reason]
        assert not world.loop.failures
        world.loop.dispose([])
