"""One execution that this coordinator owns, and what has arrived for it since the last batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.chassis.session.server import ServerSession
from services.chassis.telemetry.tracing import TraceContext, parse_traceparent
from services.coordinator.app.ports import Version
from services.coordinator.app.received import GrantedExecution, ReceivedMessage, ReceivedReport
from services.coordinator.core.commands import Command, Start
from services.coordinator.core.state import Execution


class Answer(NamedTuple):
    """The source of a command, which gets an answer once the command is in the journal: a report on a runner's session,
    or a mailbox message."""

    session: ServerSession | None = None
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
    # The first command, if the journal is still empty.
    start: Start
    # None if the execution is not sampled.
    trace: TraceContext | None
    grant_time_ns: int
    # The definition or the journal is being loaded; the inbox waits.
    is_loading: bool = False
    execution: Execution | None = None
    version: Version | None = None
    # Mailbox messages that came with the grant and are not in the inbox yet.
    granted_messages: tuple[ReceivedMessage, ...] = ()
    # Commands for the next batch, oldest first.
    inbox: list[Input] = field(default_factory=list)
    # Mailbox messages that have come, with the grant or later, and are not answered. Each is repeated until it is.
    unanswered: set[str] = field(default_factory=set)
    # Mailbox messages that are in the journal. The dispatcher hears of them when the execution parks.
    message_ids: list[str] = field(default_factory=list)
    # No longer owned. Whatever is under way for it is thrown away.
    is_dropped: bool = False
    # When its timer fires; 0: it has none.
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
