"""The stories, in the order in which they are told. Each begins with an instance that holds nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from windlass.conformance.scene import Scene
from windlass.conformance.stories import (
    attaching,
    beating,
    ending,
    granting,
    looping,
    rendering,
    reporting,
    transferring,
)

KitStory = Callable[[Scene], Awaitable[None]]

STORIES: Final[tuple[KitStory, ...]] = (
    *attaching.STORIES,
    *beating.STORIES,
    *granting.STORIES,
    *reporting.STORIES,
    *transferring.STORIES,
    *rendering.STORIES,
    *looping.STORIES,
    *ending.STORIES,
)
# The last story ends the runner's process, so it needs a process that the kit has started.
LAST_STORY: Final[KitStory] = ending.runner_drains
