"""The base class of control nodes."""

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from services.coordinator.core.events import WaitEnded
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import INLINE_BYTES_MAX, BrokenInvariant, OutputRef


class InvalidConfig(ValueError):
    """The config that a runner rendered is not one of this module. The message is for the workflow's author."""


class Control(ABC):
    module: ClassVar[str]
    # False: the config is not looked at, so nothing in it has to be rendered.
    has_config: ClassVar[bool] = True

    @abstractmethod
    def begin(self, turn: Turn, work: Work) -> None:
        """The node's join holds. It emits at least one event: it succeeds, fails or waits. It raises InvalidConfig
        before it emits anything."""

    def resume(self, turn: Turn, work: Work, end: WaitEnded) -> None:
        """A wait that the control started is over. It emits at least one event: it succeeds, fails or waits again."""
        raise BrokenInvariant(f"{self.module} never waits")


def config_of(work: Work) -> Any:
    """The node's config, rendered where it holds templates. `InvalidConfig` if a runner rendered no JSON."""
    config = work.config or work.node.config
    if isinstance(config, OutputRef):
        raise InvalidConfig(f"the rendered config has over {INLINE_BYTES_MAX} bytes")
    try:
        return json.loads(config)
    except (ValueError, RecursionError):
        raise InvalidConfig("the rendered config is not JSON") from None
