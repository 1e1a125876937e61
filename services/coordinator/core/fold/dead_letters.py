"""Bookkeeping of dead letters: they are made with the failure (`graph.py`), by a person too, and resolved here."""

from services.coordinator.core import events as ev
from services.coordinator.core.fold.answers import remember
from services.coordinator.core.fold.graph import apply_consequences, note_failure
from services.coordinator.core.state import Execution, WorkState
from services.coordinator.core.values import BrokenInvariant, DeadLetterResolution


def dead_letter_resolved(execution: Execution, event: ev.DeadLetterResolved) -> None:
    letter = execution.dead_letters[event.run]
    if letter.resolution is not DeadLetterResolution.PENDING:
        raise BrokenInvariant(f"the dead letter of run {event.run} is resolved twice")
    execution.epoch = event.epoch
    execution.holder = event.holder
    letter.resolution, letter.resolve_time = event.resolution, event.time
    letter.reviewer, letter.notes = event.caller, event.notes
    work = letter.run.work
    if work.state is WorkState.WAITING:
        # It was held for a person, and fails now.
        del execution.waits[work.key]
        work.state = WorkState.FAILED
        assert letter.run.error is not None
        note_failure(execution, work, letter.run.error)
        apply_consequences(execution, work, event.then)
    remember(execution, event.message_id)


def run_quarantined(execution: Execution, event: ev.RunQuarantined) -> None:
    """The failure of the run follows. If no runner has its work, the work is taken from where it waits. Only a circuit
    is left to the failure."""
    remember(execution, event.message_id)
    run = execution.runs[event.run - 1]
    work = run.work
    if work.state not in (WorkState.LIVE, WorkState.WAITING):
        # The attempt is over. What it has cost was counted, and its failure counts it once more.
        execution.cost_tokens -= run.cost_tokens
    match work.state:
        case WorkState.READY:
            del execution.ready[work]
        case WorkState.BACKOFF:
            del execution.backoffs[work.key]
            work.timer = 0
        case WorkState.WAITING:
            execution.waits.pop(work.key).timer = 0
        case _:
            pass
