"""The list of a loop. Each item is given to a runner by itself, never with the whole list.

A list that is too large to be inline is in the output store, with the rest of the rendered config. It is read once when
the loop starts, and once by each holder that takes the execution over.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from services.coordinator.core.loops import has_turns
from services.coordinator.core.state import Execution, Work, WorkLoop
from services.coordinator.core.values import INLINE_BYTES_MAX, OutputRef
from windlass.definition.limits import ITEMS_MAX

# All items of a list together. They stay in memory while the loop is under way.
ITEMS_BYTES_MAX = 8 * 1024 * 1024


class InvalidItems(ValueError):
    """It is no config of a loop, or the list is too large. The message is for the workflow's author."""


class LoopConfig(NamedTuple):
    # All members of the config but the items.
    members: Mapping[str, Any]
    # Each item as JSON. None: there is no list.
    items: Sequence[bytes] | None


def loop_config(text: bytes) -> LoopConfig:
    try:
        config = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InvalidItems("the rendered config is not JSON") from None
    if not isinstance(config, dict):
        raise InvalidItems("the rendered config is no object")
    items = config.pop("items", None)
    return LoopConfig(config, _each(items) if isinstance(items, list) else None)


def _each(items: list[Any]) -> list[bytes]:
    if len(items) > ITEMS_MAX:
        raise InvalidItems(f"{len(items)} items; at most {ITEMS_MAX}")
    each = [orjson.dumps(item) for item in items]
    if max(map(len, each), default=0) > INLINE_BYTES_MAX:
        raise InvalidItems(f"an item has over {INLINE_BYTES_MAX} bytes; let the list name what is larger")
    return each


def item_of(work: Work) -> bytes | None:
    """The item, as JSON, that the templates of this work see. None: it is no item of a list."""
    loop = work.loop
    if loop is None or has_turns(loop):
        return None
    config = loop.work.config or loop.work.node.config
    if not loop.items and isinstance(config, bytes):
        # The list is taken apart when its first item is granted.
        loop.items = loop_config(config).items or ()
    return loop.items[work.key.iteration - 1]


def unread_lists(execution: Execution) -> list[tuple[WorkLoop, OutputRef]]:
    """The lists in the output store that the items under way need, after a take-over."""
    loops = execution.loops.values()
    return [(loop, config) for loop in loops if not loop.items and isinstance(config := loop.work.config, OutputRef)]
