"""Owners that wait in turn for places."""

from __future__ import annotations

import asyncio

from services.chassis.grpc.turns import Turns


async def _waiting(turns: Turns, *owners: str) -> list[asyncio.Task[bool]]:
    tasks = [asyncio.create_task(turns.wait(owner)) for owner in owners]
    await asyncio.sleep(0)
    return tasks


async def test_owners_take_turns_and_the_newest_of_an_owner_goes_first() -> None:
    turns = Turns(1)
    assert turns.take("a")
    waits = await _waiting(turns, "a", "a", "b", "b")
    served: list[asyncio.Task[bool]] = []
    last = "a"
    for _ in waits:
        turns.give_back(last)
        (done,) = (await asyncio.wait(set(waits) - set(served), return_when=asyncio.FIRST_COMPLETED))[0]
        served.append(done)
        last = "aabb"[waits.index(done)]
    assert [waits.index(each) for each in served] == [1, 3, 0, 2]
    assert not turns.is_waited_for


async def test_waits_that_take_too_long_end_without_a_place() -> None:
    turns = Turns(1)
    assert turns.take("a")
    waits = await _waiting(turns, "a", "b")
    turns.end_late(asyncio.get_running_loop().time() - 60, most=2)
    await asyncio.sleep(0)
    assert not any(wait.done() for wait in waits)
    turns.end_late(asyncio.get_running_loop().time() + 60, most=1)
    await asyncio.sleep(0)
    assert [wait.done() for wait in waits] == [True, False]
    turns.end_late(asyncio.get_running_loop().time() + 60, most=1)
    assert await asyncio.gather(*waits) == [False, False]
    turns.give_back("a")
    assert turns.take("b")


async def test_wait_that_is_cancelled_keeps_no_place_also_when_it_has_just_got_one() -> None:
    turns = Turns(1)
    assert turns.take("a")
    first, second = await _waiting(turns, "a", "b")
    first.cancel()
    turns.give_back("a")
    second.cancel()
    await asyncio.wait([first, second])
    assert not turns.is_waited_for
    assert turns.take("c")
