"""Follows the decisions of an execution with snapshots, and compares what they add up to with the state."""

from collections.abc import Sequence

from deploy.audit.states import differences
from services.coordinator.app.ports import Snapshot
from services.coordinator.core.definition import Definition
from services.coordinator.core.events import Event
from services.coordinator.core.state import Execution
from services.coordinator.store.snapshots import JournalSnapshotLog, restored


class FollowedSnapshots:
    """A record is written with each append. A long execution is not followed to its end, because every snapshot is read
    from its first record."""

    def __init__(self, execution: Execution, records_max: int = 1_000) -> None:
        self._definition: Definition = execution.definition
        self._log = JournalSnapshotLog(execution, 1)
        self._records_max = records_max
        self.records: list[Snapshot] = []

    def appended(self, execution: Execution, events: Sequence[Event]) -> None:
        if len(self.records) == self._records_max:
            return
        self._log.note(execution, events)
        if record := self._log.due(execution):
            self.records.append(record)
            if record.is_whole:
                self.check(execution)

    def check(self, execution: Execution) -> None:
        again = restored(execution.execution_id, self._definition, self.records)
        assert differences(execution, again) == []
