"""The base class of control nodes."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from services.coordinator.core.events import WaitEnded
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import INLINE_BYTES_MAX, BrokenInvariant, OutputRef, Span
from windlass.definition.durations import parse_duration


class InvalidConfig(ValueError):
    """The config that a runner rendered is not one of this module. The message is for the workflow's author."""


class Control(ABC):
    module: ClassVar[str]
    # False: the config is not looked at, so nothing in it has to be rendered.
    has_config: ClassVar[bool] = True
    # True: it works on the inputs of its node, so they are rendered too.
    has_inputs: ClassVar[bool] = False

    @abstractmethod
    def begin(self, turn: Turn, work: Work) -> None:
        """The node's join holds. It emits at least one event: it succeeds, fails or waits. It raises InvalidConfig
        before it emits anything."""

    def resume(self, turn: Turn, work: Work, end: WaitEnded) -> None:
        """A wait that the control started is over. It emits at least one event: it succeeds, fails or waits again."""
        raise BrokenInvariant(f"{self.module} never waits")


def members_of(config: object, module: str) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise InvalidConfig(f"the config of {module} is an object")
    return config


def timeout_of(config: Mapping[str, Any], actions: Sequence[str]) -> Span:
    """How long the control waits for people or for messages; 0: without end. `actions` may follow when it is over."""
    if config.get("onTimeout", actions[0]) not in actions:
        raise InvalidConfig(f"onTimeout is one of {', '.join(actions)}")
    if "timeout" not in config:
        return 0
    try:
        timeout = parse_duration(config["timeout"])
    except ValueError as fault:
        raise InvalidConfig(str(fault)) from None
    if not timeout:
        raise InvalidConfig("a timeout is longer than nothing")
    return timeout


def config_of(work: Work) -> Any:
    """The node's config, rendered where it holds templates. `InvalidConfig` if a runner rendered no JSON."""
    config = work.config or work.node.config
    if isinstance(config, OutputRef):
        raise InvalidConfig(f"the rendered config has over {INLINE_BYTES_MAX} bytes")
    try:
        found = json.loads(config)
    except (ValueError, RecursionError):
        raise InvalidConfig("the rendered config is not JSON") from None
    return found["config"] if work.config and work.node.has_control_inputs else found


def inputs_of(work: Work) -> bytes:
    """The node's inputs as JSON, rendered where they hold templates, with what a person has laid over them."""
    if not work.config and not work.overrides:
        return work.node.inputs
    # A rendering that is too large to be inline has failed the node before.
    assert isinstance(work.config, bytes)
    inputs = json.loads(work.config)["inputs"] if work.config else json.loads(work.node.inputs)
    return json.dumps(inputs | json.loads(work.overrides or b"{}"), ensure_ascii=False, separators=(",", ":")).encode()
