"""Bookkeeping of signals: they come, are kept, and are taken by nodes."""

from typing import assert_never

from services.coordinator.core import events as ev
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.fold.runs import run_of
from services.coordinator.core.state import Execution, KeptSignal


def apply_signal(execution: Execution, event: ev.SignalReceived | ev.SignalTaken) -> None:
    match event:
        case ev.SignalReceived():
            remember(execution, event.message_id)
            execution.signals[execution.seq] = KeptSignal(event.signal, event.payload)
        case ev.SignalTaken():
            run_of(execution, event)
            del execution.signals[event.number]
        case _:
            assert_never(event)
