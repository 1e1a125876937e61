"""Translates the commands of people that come through the mailbox of an execution."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from services.chassis.telemetry.logs import logger
from services.coordinator.core.commands import Command, Discard, MarkFixed, Pause, Quarantine, Requeue, Resume, Retry
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

log = logger(__name__)


def read_command(message: ExecutionMessage) -> Command | None:
    """None: this version does not know the command, and a newer one may."""
    try:
        given = ExecutionCommand.FromString(message.command)
    except DecodeError:
        log.error("a command cannot be read", execution_id=message.execution_id, message_id=message.message_id)
        return None
    # The mailbox knows the message by the id of its envelope.
    head = (message.message_id, given.caller)
    match given.WhichOneof("command"):
        case "pause":
            return Pause(*head, given.pause.reason)
        case "resume":
            return Resume(*head)
        case "retry":
            return Retry(*head, given.retry.from_node, dict(given.retry.input_overrides))
        case "requeue":
            asked = given.requeue
            return Requeue(*head, asked.run, asked.notes, asked.input_overrides)
        case "mark_fixed":
            return MarkFixed(*head, given.mark_fixed.run, given.mark_fixed.output, given.mark_fixed.notes)
        case "discard":
            return Discard(*head, given.discard.run, given.discard.notes)
        case "quarantine":
            return Quarantine(*head, given.quarantine.run, given.quarantine.notes)
        case _:
            return None
