"""Signals of people and programs to a running execution.

The node that has waited longest for the signal takes it. If no node waits, the signal is kept until one does, in the
order in which signals came. What is kept is limited, because it is in memory and part of every take-over.
"""

from services.coordinator.core.answers import answered_once, ended
from services.coordinator.core.commands import Signal
from services.coordinator.core.controls import end_wait
from services.coordinator.core.decision import CommandRefusal, RefusalReason
from services.coordinator.core.events import SignalReceived, WaitKind, WaitOutcome
from services.coordinator.core.state import Execution, Work
from services.coordinator.core.turn import Turn

SIGNALS_KEPT_MAX = 1_000
SIGNAL_BYTES_KEPT_MAX = 4 * 1024 * 1024


@answered_once
def signal(turn: Turn, command: Signal) -> CommandRefusal | None:
    execution = turn.execution
    if refusal := ended(execution):
        return refusal
    waiting = _waiting_work(execution, command.signal)
    if waiting is None and (refusal := _refusal_of_more(execution, command)):
        return refusal
    turn.emit(SignalReceived(turn.now, command.message_id, command.caller, command.signal, command.payload))
    if waiting is not None:
        end_wait(turn, waiting, WaitOutcome.ARRIVED)
    return None


def _waiting_work(execution: Execution, signal: str) -> Work | None:
    waits = execution.waits.values()
    return next((wait.work for wait in waits if wait.kind is WaitKind.SIGNAL and wait.name == signal), None)


def _refusal_of_more(execution: Execution, command: Signal) -> CommandRefusal | None:
    kept = execution.signals.values()
    if len(kept) >= SIGNALS_KEPT_MAX:
        message = f"{len(kept)} signals wait for a node that takes them, and no more are kept"
        return CommandRefusal(RefusalReason.SIGNALS_FULL, message)
    size_bytes = sum(len(each.payload) for each in kept) + len(command.payload)
    if size_bytes > SIGNAL_BYTES_KEPT_MAX:
        message = f"the signals that wait for a node have at most {SIGNAL_BYTES_KEPT_MAX} bytes together"
        return CommandRefusal(RefusalReason.SIGNALS_FULL, message)
    return None
