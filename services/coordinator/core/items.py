"""The items of a loop's list. Each is given to a runner by itself, never with the whole list."""

from typing import Any

import orjson

from services.coordinator.core.loops import has_turns
from services.coordinator.core.state import Work
from windlass.definition.limits import ITEMS_MAX


class InvalidItems(ValueError):
    """The list is none that a loop can have. The message is for the workflow's author."""


def item_count(items: Any) -> int:
    if not isinstance(items, list):
        raise InvalidItems("items is a list")
    if len(items) > ITEMS_MAX:
        raise InvalidItems(f"{len(items)} items; at most {ITEMS_MAX}")
    return len(items)


def item_of(work: Work) -> bytes | None:
    """The item, as JSON, that the templates of this work see. None: it is no item of a list."""
    loop = work.loop
    if loop is None or has_turns(loop):
        return None
    if not loop.items:
        # The list is taken apart when its first item is granted.
        config = orjson.loads(loop.work.config or loop.work.node.config)
        loop.items = [orjson.dumps(item) for item in config["items"]]
    return loop.items[work.key.iteration - 1]
