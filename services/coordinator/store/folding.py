"""Folds the rows of a journal to the state of the execution."""

from __future__ import annotations

from collections.abc import Sequence

from services.coordinator.app.journal_loader import UnknownEvents
from services.coordinator.core.definition import Definition
from services.coordinator.core.fold import apply
from services.coordinator.core.state import Execution
from services.coordinator.store.codec import CorruptRecord, UnknownEvent, unseal


def fold_journal(execution_id: str, definition: Definition, rows: Sequence[bytes]) -> Execution:
    """Raises UnknownEvents or CorruptRecord."""
    execution = Execution(execution_id, definition)
    for row in rows:
        for stored in unseal(row):
            if stored.seq != execution.seq + 1 or stored.execution_id != execution_id:
                raise CorruptRecord(
                    f"after event {execution.seq} of {execution_id} comes {stored.seq} of {stored.execution_id}"
                )
            if isinstance(stored.event, UnknownEvent):
                raise UnknownEvents(f"event {stored.seq} is of version {stored.event.schema_version}")
            apply(execution, stored.event)
    return execution
