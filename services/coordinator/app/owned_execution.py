"""One execution in the hands of this coordinator, and what has arrived for it since the last turn."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.chassis.telemetry.tracing import TraceContext, parse_traceparent
from services.coordinator.app.ports import RunnerSession, Version
from services.coordinator.core.commands import Command
from services.coordinator.core.state import Execution
from windlass.coordinator.v1.sessions_pb2 import RunReport
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant

_EXECUTION_ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IS_EXECUTION_ID: Final = re.compile(_EXECUTION_ID).fullmatch
# Nine digits at most: what a column of 32 bits holds.
_IS_RUN_ID: Final = re.compile(rf"({_EXECUTION_ID})\.([0-9]{{1,9}})").fullmatch


class Answer(NamedTuple):
    """Who waits for a command to be in the journal: a report on a runner's session, or a message of the mailbox."""

    session: RunnerSession | None = None
    report: RunReport | None = None
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
    grant: ExecutionGrant
    # Only when it is sampled.
    trace: TraceContext | None
    grant_time_ns: int
    # Its definition or journal is still on the way: the inbox waits.
    is_loading: bool = False
    execution: Execution | None = None
    version: Version | None = None
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


def owned_from(grant: ExecutionGrant, now_ns: int) -> OwnedExecution:
    trace = parse_traceparent(grant.start.traceparent)
    return OwnedExecution(
        execution_id=grant.lease.lease_id,
        epoch=grant.lease.epoch,
        grant=grant,
        trace=trace if trace is not None and trace.sampled else None,
        grant_time_ns=now_ns,
        unanswered={message.message_id for message in grant.messages},
    )


def is_execution_id(text: str) -> bool:
    """Asked of every id that came from outside before it goes into a statement: the database answers another form with
    an error, not with nothing."""
    return _IS_EXECUTION_ID(text) is not None


def split_run_id(run_id: str) -> tuple[str, int]:
    """("", 0) for what is no run id."""
    found = _IS_RUN_ID(run_id)
    return (found[1], int(found[2])) if found else ("", 0)
