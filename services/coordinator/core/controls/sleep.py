"""sleep@1: go on after a duration, or at a time.

    config: {"duration": "90s"} or {"until": "2026-11-18T12:00:00Z"}

A time that has passed ends the sleep at once.
"""

from collections.abc import Mapping

from services.coordinator.core.controls.control import Control, InvalidConfig, config_of
from services.coordinator.core.events import WaitEnded, WaitKind
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from services.coordinator.core.values import Instant
from windlass.definition.durations import parse_duration, parse_time


class Sleep(Control):
    module = "sleep@1"

    def begin(self, turn: Turn, work: Work) -> None:
        turn.wait(work, WaitKind.TIMER, _wake_time(config_of(work), turn.now))

    def resume(self, turn: Turn, work: Work, end: WaitEnded) -> None:
        turn.succeed(work, b"{}")


def _wake_time(config: object, now: Instant) -> Instant:
    if not isinstance(config, Mapping) or ("duration" in config) == ("until" in config):
        raise InvalidConfig("sleep@1 takes exactly one of duration and until")
    try:
        if "duration" in config:
            return now + parse_duration(config["duration"])
        # A due time of 0 would mean that no time ends the wait.
        return parse_time(config["until"]) or now
    except ValueError as fault:
        raise InvalidConfig(str(fault)) from None
