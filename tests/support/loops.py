"""Executions with loops, for tests of the core."""

from collections.abc import Sequence
from typing import Any

from services.coordinator.core.commands import ReportDeferred
from services.coordinator.core.values import OutputRef
from tests.support.story import Document, Story, node, started

BODY = {"module": "noop@1"}
LARGE = OutputRef("k" * 60, "0" * 64, 300_000)


def for_each(items: Any, *, id: str = "l", body: Any = BODY, node_more: Any = None, **config: Any) -> Document:
    return node(id, "for_each@1", config={"items": items, "body": body, **config}, **(node_more or {}))


def repeat(until: str = "output.done", *, body: Any = BODY, **config: Any) -> Document:
    return node("r", "repeat@1", config={"until": until, "body": body, **config})


def looping(*items: Any, edges: Sequence[Document] = (), more: Sequence[Document] = (), **config: Any) -> Story:
    """A loop over these items that has begun."""
    return started(for_each(list(items), **config), *more, edges=edges)


def turns(story: Story, *branches: str) -> Any:
    """One turn after the other. Returns the last decision."""
    decision = None
    for branch in branches:
        item = story.ready_items[0]
        story.assign()
        decision = story.succeed("r", b'{"turn":%d}' % item, branch, item=item)
    return decision


def left_to_somebody_else(story: Story, id: str, item: int) -> Any:
    run = story.run(id, item)
    return story.when(ReportDeferred(run.number, run.epoch, start_time=story.now, end_time=story.now))
