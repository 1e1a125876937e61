"""One execution in the hands of this coordinator, and what has arrived for it since the last turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from services.chassis.telemetry import TraceContext, parse_traceparent
from services.coordinator.core.commands import Command
from services.coordinator.core.state import Execution
from services.coordinator.handler.ports import RunnerSession, Version
from windlass.coordinator.v1.sessions_pb2 import RunReport
from windlass.dispatcher.v1.sessions_pb2 import ExecutionGrant


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
class Held:
    """Compared by identity: the same execution granted anew, under a higher epoch, is another Held."""

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
    # Mailbox messages that are in the journal: told when it parks.
    message_ids: list[str] = field(default_factory=list)
    # Not in our hands any more: what is under way for it is thrown away.
    is_dropped: bool = False
    # What its timer is set to; 0: none.
    wake: int = 0


def held_from(grant: ExecutionGrant, now_ns: int) -> Held:
    trace = parse_traceparent(grant.start.traceparent)
    return Held(
        execution_id=grant.lease.lease_id,
        epoch=grant.lease.epoch,
        grant=grant,
        trace=trace if trace is not None and trace.sampled else None,
        grant_time_ns=now_ns,
    )


def split_run_id(run_id: str) -> tuple[str, int]:
    """("", 0) for what is no run id."""
    execution_id, _, number = run_id.rpartition(".")
    return (execution_id, int(number)) if number.isdecimal() and number.isascii() else ("", 0)
