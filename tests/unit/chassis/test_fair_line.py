"""A resource with few places is used by turns, and a workspace that asks for much waits for itself."""

from __future__ import annotations

import asyncio

import pytest

from services.chassis.process import fair_line as line_module
from services.chassis.process.fair_line import FairLine, NoTurn

LONG = 60.0


class Guests:
    """Guests take their turns, are recorded, and stay until a test lets them go."""

    def __init__(self, places: int, **more: int) -> None:
        self.line = FairLine(places, **more)
        self.served: list[str] = []
        self._stay: dict[str, asyncio.Event] = {}

    async def come(self, name: str) -> asyncio.Task[None]:
        """The first letter of a name is its workspace."""
        self._stay[name] = asyncio.Event()
        task = asyncio.create_task(self._visit(name))
        await settled()
        return task

    async def go(self, name: str) -> None:
        self._stay[name].set()
        await settled()

    async def _visit(self, name: str) -> None:
        async with self.line.turn(name[0], LONG):
            self.served.append(name)
            await self._stay[name].wait()


async def settled() -> None:
    """Returns when every task waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_workspaces_take_turns_however_much_one_of_them_asks_for() -> None:
    guests = Guests(places=1)
    tasks = [await guests.come(f"a{number}") for number in range(50)]
    tasks += [await guests.come(f"b{number}") for number in range(3)]
    tasks += [await guests.come("c0")]
    for _ in range(54):
        await guests.go(guests.served[-1])
    assert guests.served[:8] == ["a0", "b0", "c0", "a1", "b1", "a2", "b2", "a3"]
    assert guests.served[8:] == [f"a{number}" for number in range(4, 50)]
    await asyncio.gather(*tasks)


async def test_flood_of_one_workspace_leaves_the_other_place_to_others() -> None:
    guests = Guests(places=2)
    flood = [await guests.come(f"a{number}") for number in range(20)]
    assert guests.served == ["a0"]
    for number in range(5):
        await guests.come(f"b{number}")
        assert guests.served[-1] == f"b{number}"
        await guests.go(f"b{number}")
    assert guests.served == ["a0", *(f"b{number}" for number in range(5))]
    for number in range(20):
        await guests.go(f"a{number}")
    await asyncio.gather(*flood)


async def test_workspace_may_have_some_places_and_no_more() -> None:
    guests = Guests(places=4, places_of_each=2)
    flood = [await guests.come(f"a{number}") for number in range(5)]
    others = [await guests.come(f"b{number}") for number in range(2)]
    assert guests.served == ["a0", "a1", "b0", "b1"]
    for name in ("a0", "b0", "a1", "a2", "b1", "a3", "a4"):
        await guests.go(name)
    await asyncio.gather(*flood, *others)


async def test_place_of_whoever_fails_or_gives_up_is_free_again() -> None:
    guests = Guests(places=1)
    going, waiting = await guests.come("a0"), await guests.come("b0")
    waiting.cancel()
    going.cancel()
    await asyncio.gather(going, waiting, return_exceptions=True)
    await guests.come("c0")
    assert guests.served == ["a0", "c0"]
    await guests.go("c0")


async def test_turn_that_comes_as_its_owner_gives_up_is_passed_on() -> None:
    guests = Guests(places=1)
    await guests.come("a0")
    late, next_one = await guests.come("b0"), await guests.come("c0")
    going = asyncio.create_task(guests.go("a0"))
    await asyncio.sleep(0)
    late.cancel()
    await going
    await guests.go("c0")
    await next_one
    assert guests.served[-1] == "c0"


async def test_wait_for_a_turn_has_an_end() -> None:
    line = FairLine(1)
    async with line.turn("a", LONG):
        with pytest.raises(NoTurn):
            async with line.turn("a", 0.0):
                raise AssertionError("there is one place")
    async with line.turn("a", LONG):
        pass


async def test_line_of_a_workspace_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "WAITING_MAX", 1)
    guests = Guests(places=1)
    first, second = await guests.come("a0"), await guests.come("a1")
    third = await guests.come("a2")
    with pytest.raises(NoTurn):
        await third
    other = await guests.come("b0")
    for name in ("a0", "b0", "a1"):
        await guests.go(name)
    await asyncio.gather(first, second, other)
