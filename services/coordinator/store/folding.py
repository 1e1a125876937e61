"""A journal as read, folded to its state."""

from __future__ import annotations

from collections.abc import Sequence

from services.coordinator.app.journal_loader import UnknownEvents
from services.coordinator.core.definition import Definition
from services.coordinator.core.evolve import evolve
from services.coordinator.core.state import Execution
from services.coordinator.store.codec import CorruptRecord, UnknownEvent, decode


def fold_journal(execution_id: str, definition: Definition, events: Sequence[bytes]) -> Execution:
    """Raises UnknownEvents or CorruptRecord."""
    execution = Execution(execution_id, definition)
    for place, data in enumerate(events, 1):
        stored = decode(data)
        if stored.seq != place or stored.execution_id != execution_id:
            raise CorruptRecord(
                f"record {place} of {execution_id} says {stored.seq} of {stored.execution_id}"
            )
        if isinstance(stored.event, UnknownEvent):
            raise UnknownEvents(f"record {place} is of type {stored.event.type_number}")
        evolve(execution, stored.event)
    return execution
