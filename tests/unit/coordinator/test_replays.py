"""Few journals are replayed at once, others wait, and too many are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from services.chassis.grpc.errors import Refusal
from services.coordinator.app.replays import Replays
from tests.support.story import EXECUTION_ID, Story, node


async def test_more_replays_than_may_wait_are_refused_and_the_others_go_on() -> None:
    story = Story([node("a")])
    story.start()
    may_end = asyncio.Event()

    async def parts() -> AsyncIterator[Any]:
        for seq, event in enumerate(story.journal, 1):
            yield seq, event
        await may_end.wait()

    nothing: Any = None
    replays = Replays(nothing, nothing)

    async def replay() -> Any:
        return await replays.of_export(EXECUTION_ID, story.definition, parts())

    waiting = [asyncio.create_task(replay()) for _ in range(32)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="too many journals") as refused:
        await replay()
    assert refused.value.reason == "REPLAYS_EXCEEDED"
    may_end.set()
    assert {(await task).events for task in waiting} == {len(story.journal)}
    assert (await replay()).first_difference is None
