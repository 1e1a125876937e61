"""What dispatchers and runners send, as plain values: rpc/ and peers/ translate it once, when it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.coordinator.core.commands import Command, Start


class ReceivedMessage(NamedTuple):
    """A message from the mailbox of an execution."""

    message_id: str
    execution_id: str
    # None: a newer dispatcher sent it, and this version does not know what it asks for.
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
    # 0: the lease is no run's.
    number: int
    epoch: int
    instance_id: str
    # None: an outcome that this version does not know.
    command: Command | None
    # The report itself, for whoever has to pass it on.
    message: object


class ReceivedProgress(NamedTuple):
    """What a runner says of a run that goes on."""

    execution_id: str
    commands: Sequence[Command]
