"""Translates the commands of people that come through the mailbox of an execution."""

from __future__ import annotations

import random
from typing import TypeAlias

from google.protobuf.message import DecodeError

from services.chassis.telemetry.logs import logger
from services.coordinator.core.commands import (
    Command,
    CompleteRun,
    DecideApproval,
    Discard,
    FailRun,
    HeartbeatRun,
    MarkFixed,
    Pause,
    Quarantine,
    Requeue,
    Resume,
    Retry,
    Signal,
)
from services.coordinator.core.results import ERROR_MESSAGE_MAX, ERROR_TYPE_MAX
from services.coordinator.core.values import ApprovalChoice, Error, ErrorClass
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.dispatcher.v1.sessions_pb2 import ExecutionMessage

log = logger(__name__)

# The message id of the command and its caller.
_Head: TypeAlias = tuple[str, str]


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
        case "signal":
            return Signal(*head, given.signal.signal, given.signal.payload)
        case "decide_approval":
            return _decision(head, given.decide_approval)
        case "complete_run":
            return CompleteRun(*head, given.complete_run.run, given.complete_run.output, given.complete_run.branch)
        case "fail_run":
            return _failure(head, given.fail_run)
        case "heartbeat_run":
            return _heartbeat(head, given.heartbeat_run)
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


def _decision(head: _Head, given: ExecutionCommand.DecideApproval) -> DecideApproval:
    choice = ApprovalChoice.APPROVE if given.approves else ApprovalChoice.REJECT
    return DecideApproval(*head, given.key_id, given.role, given.run, choice, given.form or b"{}", given.comment)


def _failure(head: _Head, given: ExecutionCommand.FailRun) -> FailRun:
    error_class = ErrorClass.TRANSIENT if given.retryable else ErrorClass.PERMANENT
    error = Error(error_class, given.type[:ERROR_TYPE_MAX], given.message[:ERROR_MESSAGE_MAX])
    return FailRun(*head, given.run, error, random.random())


def _heartbeat(head: _Head, given: ExecutionCommand.HeartbeatRun) -> HeartbeatRun:
    progress = given.progress if given.HasField("progress") else None
    return HeartbeatRun(*head, given.run, progress, given.message if given.HasField("message") else None)
