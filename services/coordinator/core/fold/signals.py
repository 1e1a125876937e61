"""Bookkeeping of signals: they come, are kept, and are taken by nodes."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.fold.runs import run_of
from services.coordinator.core.state import Execution, KeptSignal


def signal_received(execution: Execution, event: ev.SignalReceived) -> None:
    remember(execution, event.message_id)
    execution.signals[execution.seq] = KeptSignal(event.signal, event.payload)


def signal_taken(execution: Execution, event: ev.SignalTaken) -> None:
    run_of(execution, event)
    del execution.signals[event.number]
