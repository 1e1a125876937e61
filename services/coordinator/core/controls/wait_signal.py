"""wait_signal@1: go on when a signal of this name arrives. One that came earlier is taken at once, the oldest first.

    config: {"signal": "paid", "timeout": "2d", "onTimeout": "FAIL"}     onTimeout may be CONTINUE

The output is the payload of the signal; after a timeout with CONTINUE it is null. Each signal goes to one node.
"""

from services.coordinator.core.controls.control import Control, InvalidConfig, config_of, members_of, timeout_of
from services.coordinator.core.events import SignalTaken, WaitEnded, WaitKind, WaitOutcome
from services.coordinator.core.state import Work
from services.coordinator.core.turn import Turn
from windlass.definition.limits import SIGNAL_CHARACTERS_MAX


class WaitSignal(Control):
    module = "wait_signal@1"

    def begin(self, turn: Turn, work: Work) -> None:
        config = members_of(config_of(work), self.module)
        signal, timeout = _signal_of(config), timeout_of(config, ("FAIL", "CONTINUE"))
        if not _take(turn, work, signal):
            turn.wait(work, WaitKind.SIGNAL, turn.now + timeout if timeout else 0, signal)

    def resume(self, turn: Turn, work: Work, end: WaitEnded) -> None:
        config = config_of(work)
        if end.outcome is WaitOutcome.ARRIVED:
            _take(turn, work, config["signal"])
        elif config.get("onTimeout") == "CONTINUE":
            turn.succeed(work, b"null")
        else:
            turn.fail(work, "SIGNAL_TIMEOUT", f"no signal {config['signal']!r} came within {config['timeout']}")


def _take(turn: Turn, work: Work, signal: str) -> bool:
    """False: none is kept."""
    kept = turn.execution.signals
    number = next((number for number, each in kept.items() if each.signal == signal), 0)
    if not number:
        return False
    payload = kept[number].payload
    turn.emit(SignalTaken(turn.now, work.key, turn.run_of(work), number))
    turn.succeed(work, payload)
    return True


def _signal_of(config: dict[str, object]) -> str:
    signal = config.get("signal")
    if not isinstance(signal, str) or not 0 < len(signal) <= SIGNAL_CHARACTERS_MAX:
        raise InvalidConfig(f"wait_signal@1 names its signal by a text of 1 to {SIGNAL_CHARACTERS_MAX} characters")
    return signal
