"""Messages of dispatchers and runners as plain values. rpc/ and peers/ translate each once, when it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.coordinator.core.commands import Command, Start


class ReceivedMessage(NamedTuple):
    """A message from the mailbox of an execution."""

    message_id: str
    execution_id: str
    # None: a newer dispatcher sent it, and this version does not know it.
    command: Command | None


class GrantedExecution(NamedTuple):
    """An execution that a dispatcher granted to this coordinator, under the epoch of its start."""

    execution_id: str
    start: Start
    # A hint: an earlier holder may have begun it.
    is_resumed: bool
    messages: tuple[ReceivedMessage, ...]


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


class ReceivedProgress(NamedTuple):
    """A runner's news of a run that goes on."""

    execution_id: str
    commands: Sequence[Command]
