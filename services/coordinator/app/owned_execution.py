"""One execution in the hands of this coordinator, and what has arrived for it since the last turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.chassis.telemetry.tracing import TraceContext, parse_traceparent
from services.coordinator.app.ports import RunnerSession, Version
from services.coordinator.app.received import GrantedExecution, ReceivedMessage, ReceivedReport
from services.coordinator.core.commands import Command, Start
from services.coordinator.core.state import Execution


class Answer(NamedTuple):
    """Who waits for a command to be in the journal: a report on a runner's session, or a message of the mailbox."""

    session: RunnerSession | None = None
    report: ReceivedReport | None = None
    message_id: str = ""


NOBODY = Answer()


class Input(NamedTuple):
    command: Command
    answer: Answer = NOBODY


@dataclass(slots=True, eq=False)
class OwnedExecution:
    """Compared by identity: the same execution granted anew, under a higher epoch, is another OwnedExecution."""

    execution_id: str
    epoch: int
    # Its first command, should nothing be in its journal yet.
    start: Start
    # Only when it is sampled.
    trace: TraceContext | None
    grant_time_ns: int
    # Its definition or journal is still on the way: the inbox waits.
    is_loading: bool = False
    execution: Execution | None = None
    version: Version | None = None
    # Mailbox messages that came with the grant and are not in the inbox yet.
    granted_messages: tuple[ReceivedMessage, ...] = ()
    # What the next turn decides, oldest first.
    inbox: list[Input] = field(default_factory=list)
    # Mailbox messages that have come, by the grant or since, and are not answered: each is said again until it is.
    unanswered: set[str] = field(default_factory=set)
    # Mailbox messages that are in the journal: told when it parks.
    message_ids: list[str] = field(default_factory=list)
    # Not in our hands any more: what is under way for it is thrown away.
    is_dropped: bool = False
    # What its timer is set to; 0: none.
    wake: int = 0


def owned_from(grant: GrantedExecution, now_ns: int) -> OwnedExecution:
    trace = parse_traceparent(grant.start.origin.traceparent)
    return OwnedExecution(
        execution_id=grant.execution_id,
        epoch=grant.start.epoch,
        start=grant.start,
        trace=trace if trace is not None and trace.sampled else None,
        grant_time_ns=now_ns,
        granted_messages=grant.messages,
        unanswered={message.message_id for message in grant.messages},
    )
