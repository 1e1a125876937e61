"""One execution that this coordinator owns, and the inputs that have arrived for it since the last batch.

Messages of dispatchers and runners are plain values. peers/ and rpc/ translate each once, when it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from services.chassis.session.server import ServerSession
from services.chassis.telemetry.tracing import TraceContext
from services.coordinator.app.ports import SnapshotLog, Version
from services.coordinator.core.commands import Command, Start
from services.coordinator.core.effects import PARKING_WAIT_MIN
from services.coordinator.core.state import Execution, Obligation
from services.coordinator.core.values import Instant


class ReceivedMessage(NamedTuple):
    """A message from the mailbox of an execution."""

    message_id: str
    execution_id: str
    # None: a newer dispatcher sent it, and this version does not know it.
    command: Command | None


class ReceivedReport(NamedTuple):
    """The outcome of a run, as its runner reported it."""

    report_id: str
    # The id of the run.
    lease_id: str
    execution_id: str
    # The number of the run; 0: the lease does not name a run.
    number: int
    epoch: int
    instance_id: str
    # None: this version does not know the outcome.
    command: Command | None
    # The report as it came, to be forwarded.
    message: object


# A runner's news of a run that goes on: the id of its execution, and what there is to decide.
ReceivedProgress = tuple[str, Sequence[Command]]


class CommandSource(NamedTuple):
    """The source of a command, which gets an answer once the command is in the journal: a report on a runner's session,
    or a mailbox message."""

    session: ServerSession | None = None
    report: ReceivedReport | None = None
    message_id: str = ""


NOBODY = CommandSource()


class Input(NamedTuple):
    command: Command
    source: CommandSource = NOBODY


@dataclass(slots=True, eq=False)
class OwnedExecution:
    """Compared by identity: the same execution granted anew, under a higher epoch, is another OwnedExecution."""

    execution_id: str
    epoch: int
    # The first command, if the journal is still empty.
    start: Start
    # The trace of the execution; None if it is not sampled.
    trace: TraceContext | None = None
    grant_time_ns: int = 0
    # When it was woken, if it was parked before.
    wake_time: Instant = 0
    # A hint: an earlier holder may have begun it.
    is_resumed: bool = False
    # It has no slot, because it is only to be ended.
    ends_only: bool = False
    # The last event of other holders. Runs with a later lease were granted here.
    adopted_seq: int = 0
    # Its journal has begun: a holder before has said so, or this one has read it or written to it.
    has_begun: bool = False
    # The dispatchers know that.
    is_known_begun: bool = False
    # The definition or the journal is being loaded; the inbox waits.
    is_loading: bool = False
    execution: Execution | None = None
    version: Version | None = None
    # None: it is too short for snapshots.
    snapshots: SnapshotLog | None = None
    # Mailbox messages that came with the grant and are not in the inbox yet.
    granted_messages: tuple[ReceivedMessage, ...] = ()
    # Commands for the next batch, oldest first.
    inbox: list[Input] = field(default_factory=list)
    # Mailbox messages that have come, with the grant or later, and are not answered. Each is repeated until it is.
    unanswered: set[str] = field(default_factory=set)
    # Mailbox messages that are in the journal. The dispatcher hears of them when the execution parks.
    message_ids: list[str] = field(default_factory=list)
    # What it owes to others, in the order in which it has to be done (`obligations.py`).
    owed: list[Obligation] = field(default_factory=list)
    # What it owes cannot be done before this time, so it may give back its slot meanwhile. 0: there is no such time.
    rest_until: Instant = 0
    # True: it is no longer owned, and whatever is under way for it is thrown away.
    is_dropped: bool = False
    # Where the place of each live run is counted, by the number of the run (`RunnerPlaces`).
    places: dict[int, Any] = field(default_factory=dict)
    # The time at which its timer fires; 0: it has none.
    wake: int = 0

    @property
    def is_unprepared_fork(self) -> bool:
        """Before it starts, its origin has to be read (`fork_origins.py`)."""
        start = self.start
        return bool(start.origin.origin_seq) and start.cancel is None and not start.finished

    @property
    def may_use_runners(self) -> bool:
        """It has a slot, or all that is left is to undo what was done."""
        return not self.ends_only or (self.execution is not None and self.execution.is_ending)

    def lacks_slot(self, now: Instant) -> bool:
        """It was to be ended, and goes on: its cancel had come before, or a person has reopened it. If its deadline has
        passed by the clock of the dispatchers, it soon passes by the one here."""
        execution = self.execution
        if not self.ends_only or execution is None or execution.is_final or execution.is_ending:
            return False
        is_late = 0 < execution.deadline <= now + PARKING_WAIT_MIN
        return self.start.cancel is not None or not is_late

    @property
    def is_stopping(self) -> bool:
        """Its runners were told to stop."""
        return self.execution is not None and self.execution.stop is not None
