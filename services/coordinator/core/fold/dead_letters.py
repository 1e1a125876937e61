"""Bookkeeping of dead letters: they are made with the failure (`graph.py`), and resolved here."""

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
