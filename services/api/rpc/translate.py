"""Translates requests to commands, and records to the messages of the public API.

An execution that has started is shown as its coordinator says, which fills the public message
(services/coordinator/rpc/public_executions.py). Before that it is PENDING, by its row in the dispatchers' queue. The
row also has the end of an execution that was given up, because it could not be admitted, or because no coordinator
could go on with it. Its journal has no final event; `_last_event` stands for it.

Hazard: all watches of an execution share one record, so no function here changes a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

import orjson
from google.protobuf import struct_pb2

from services.api.app import ports
from services.api.app.starts import INPUT_BYTES_MAX, PreparedStart, StartCommand
from services.api.core.tiers import in_force
from services.api.rpc.structs import fill, set_value, to_dict
from services.chassis.grpc.beside import beside
from services.chassis.identity.callers import caller
from services.chassis.telemetry.tracing import parse_traceparent
from windlass.api.v1 import executions_pb2, exports_pb2, resources_pb2, workspaces_pb2
from windlass.api.v1.resources_pb2 import Execution
from windlass.catalog.v1 import catalog_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.coordinator.v1.commands_pb2 import ExecutionCommand
from windlass.definition.faults import Fault
from windlass.definition.parsing import Format
from windlass.dispatcher.v1 import queue_pb2
from windlass.types.v1 import start_pb2

Answer = TypeVar(
    "Answer",
    executions_pb2.StartExecutionResponse,
    executions_pb2.GetExecutionResponse,
    executions_pb2.CancelExecutionResponse,
    executions_pb2.PauseExecutionResponse,
    executions_pb2.ResumeExecutionResponse,
    executions_pb2.SignalExecutionResponse,
    executions_pb2.RetryExecutionResponse,
    executions_pb2.ForkExecutionResponse,
    exports_pb2.ImportExecutionResponse,
)
PRIORITY_DEFAULT: Final = 3
ADMISSION: Final = "ADMISSION"
# The types of the last event of executions that were given up: without a journal, or with an unfinished one.
NOT_ADMITTED: Final = "ExecutionNotAdmitted"
GIVEN_UP: Final = "ExecutionGivenUp"
_BILLION: Final = 1_000_000_000


async def start_command(request: executions_pb2.StartExecutionRequest) -> StartCommand:
    document = await to_dict(request.input, "input", INPUT_BYTES_MAX)
    timeout = request.timeout.seconds * _BILLION + request.timeout.nanos
    return StartCommand(
        request.workflow, request.version, document, request.request_id, request.labels, request.priority, timeout
    )


def enqueue_item(start: PreparedStart, caller: str, traceparent: str) -> queue_pb2.EnqueueItem:
    command, startable = start.command, start.startable
    order = start_pb2.StartOrder(
        execution_id=start.execution_id,
        workspace=start.workspace,
        workflow=command.workflow,
        version=startable.version,
        version_id=startable.version_id,
        input=start.content,
        # To copy an empty map costs more than the rest of the order.
        labels=command.labels or None,
        priority=command.priority or PRIORITY_DEFAULT,
        request_id=command.request_id,
        trigger_type=Execution.Trigger.MANUAL,
        caller=caller,
        traceparent=traceparent,
        runner_weight=startable.runner_weight,
    )
    order.create_time.seconds, order.create_time.nanos = divmod(start.create_ns, _BILLION)
    if start.deadline_ns:
        order.deadline_time.seconds, order.deadline_time.nanos = divmod(start.deadline_ns, _BILLION)
    item = queue_pb2.EnqueueItem(start=order, request_hash=start.request_hash)
    item.limits.executions_max, item.limits.queued_max = startable.limits
    item.limits.revision = startable.workspace_revision
    return item


def command(title: str | None = None) -> ExecutionCommand:
    """A command of the caller, or of the one with this title. Its kind and its message_id are yet to be set."""
    made = ExecutionCommand(caller=caller().title if title is None else title)
    made.time.GetCurrentTime()
    return made


def child_item(start: PreparedStart, order: start_pb2.StartOrder) -> queue_pb2.EnqueueItem:
    """The item of a child: as any start, with what its parent's coordinator knows."""
    item = enqueue_item(start, order.caller, order.traceparent)
    made = item.start
    made.trigger_type, made.depth = order.trigger_type, order.depth
    made.parent_execution_id = order.parent_execution_id
    if order.HasField("deadline_time"):
        deadline_ns = order.deadline_time.ToNanoseconds()
        if not start.deadline_ns or deadline_ns < start.deadline_ns:
            made.deadline_time.CopyFrom(order.deadline_time)
    return item


def fork_item(start: PreparedStart, origin_seq: int, caller: str, traceparent: str) -> queue_pb2.EnqueueItem:
    """The item of a fork: as any start, with what it takes over."""
    item = enqueue_item(start, caller, traceparent)
    assert start.command.fork is not None
    order = item.start
    order.origin_execution_id, order.from_node = start.command.fork.execution_id, start.command.fork.from_node
    order.origin_seq = origin_seq
    return item


def queued_view(item: queue_pb2.EnqueueItem) -> ports.ExecutionView:
    """The execution that was just queued with this item."""
    row = queue_pb2.Queued(start=item.start)
    return ports.ExecutionView(item.start.execution_id, item.start.workspace, "PENDING", 0, row=row)


def journal_seq(execution: ports.ExecutionView) -> int:
    """The sequence of the last event of its journal. 0: no coordinator has it, so it has no journal."""
    return 0 if execution.record is None else execution.last_seq - execution.is_given_up


def input_of(execution: ports.ExecutionView) -> bytes:
    content: bytes = execution.row.start.input if execution.record is None else execution.record.input
    return content


async def approval(record: reads_pb2.ApprovalRecord) -> resources_pb2.Approval:
    return await beside(record.ByteSize(), lambda: approval_of(record))


def approval_of(record: reads_pb2.ApprovalRecord) -> resources_pb2.Approval:
    shown = resources_pb2.Approval()
    shown.CopyFrom(record.approval)
    fill(shown.form, record.form)
    for decision, form in zip(shown.decisions, record.decision_forms, strict=True):
        fill(decision.form, form)
    return shown


def pending(order: start_pb2.StartOrder, given: struct_pb2.Struct) -> Execution:
    """The execution that was just queued."""
    execution = _queued(queue_pb2.Queued(start=order))
    execution.input.CopyFrom(given)
    return execution


async def answer(response: Answer, execution: ports.ExecutionView) -> Answer:
    """The answer is filled in place, so that the input and output are not copied."""
    given, output = input_of(execution), b"" if execution.record is None else execution.record.output
    shown = response.execution
    shown.CopyFrom(listed(execution))

    def fill_both() -> None:
        fill(shown.input, given)
        fill(shown.output, output)

    await beside(len(given) + len(output), fill_both)
    return response


def listed(execution: ports.ExecutionView) -> Execution:
    """The execution as lists show it, without input and output."""
    record: reads_pb2.ExecutionRecord | None = execution.record
    shown = _queued(execution.row) if record is None else record.execution
    if not execution.is_given_up:
        return shown
    ended = Execution()
    ended.CopyFrom(shown)
    row: queue_pb2.Queued = execution.row
    message = ": ".join(filter(None, (row.failure_reason, row.failure_message)))
    ended.state, ended.last_seq = Execution.FAILED, execution.last_seq
    ended.error.type, ended.error.message = ADMISSION, message
    ended.end_time.CopyFrom(row.failure_time)
    return ended


def _queued(row: queue_pb2.Queued) -> Execution:
    """The execution as it was queued, without its input. A pause that it has yet to read is shown, because nothing
    begins before it has read it."""
    order = row.start
    trace = parse_traceparent(order.traceparent)
    return Execution(
        id=order.execution_id,
        workflow=order.workflow,
        version=order.version,
        state=Execution.PENDING,
        labels=order.labels,
        priority=order.priority,
        trigger=Execution.Trigger(type=order.trigger_type, caller=order.caller),  # type: ignore[arg-type] # by number
        parent_execution_id=order.parent_execution_id,
        origin_execution_id=order.origin_execution_id,
        create_time=order.create_time,
        deadline_time=order.deadline_time if order.HasField("deadline_time") else None,
        trace_id="" if trace is None else trace.trace_id_hex,
        pause=_unread_pause(row.unread_commands),
    )


def _unread_pause(commands: Iterable[bytes]) -> Execution.Pause | None:
    pause: Execution.Pause | None = None
    for command in map(ExecutionCommand.FromString, commands):
        if command.HasField("resume"):
            pause = None
        elif command.HasField("pause") and pause is None:
            pause = Execution.Pause(caller=command.caller, reason=command.pause.reason, time=command.time)
    return pause


def run(record: reads_pb2.RunRecord) -> resources_pb2.Run:
    made = resources_pb2.Run()
    made.CopyFrom(record.run)
    if record.output:
        set_value(made.output, orjson.loads(record.output))
    return made


def event(found: ports.EventView) -> resources_pb2.Event:
    if isinstance(found.record, ports.ExecutionView):
        return _last_event(found.record)
    record: reads_pb2.EventRecord = found.record
    made = resources_pb2.Event()
    made.CopyFrom(record.event)
    fill(made.details, record.details)
    return made


def event_bytes(found: ports.EventView) -> int:
    """The size of what the event holds as JSON."""
    return 0 if isinstance(found.record, ports.ExecutionView) else len(found.record.details)


def is_taken_signal(found: ports.EventView, number: int) -> bool:
    """Whether a node takes, by this event, the signal that came with the event of this number."""
    record: reads_pb2.EventRecord = found.record
    return record.event.type == "SignalTaken" and bool(orjson.loads(record.details)["number"] == number)


def _last_event(given_up: ports.ExecutionView) -> resources_pb2.Event:
    """The end of an execution that was given up. It is the only event if the execution was never admitted."""
    shown, seq = listed(given_up), given_up.last_seq
    kind = NOT_ADMITTED if seq == 1 else GIVEN_UP
    made = resources_pb2.Event(seq=seq, type=kind, time=shown.end_time, state=shown.state)
    made.details.update({"type": shown.error.type, "message": shown.error.message})
    return made


async def workflow(record: ports.WorkflowRecord) -> resources_pb2.Workflow:
    return await beside(len(record.definition), lambda: workflow_of(record))


def workflow_of(record: ports.WorkflowRecord) -> resources_pb2.Workflow:
    fields = _common(record, "workflow version create_time update_time archive_time source source_format")
    description = orjson.loads(record.definition).get("description", "")
    made = resources_pb2.Workflow(**fields, etag=str(record.revision), description=description)
    fill(made.definition, record.definition)
    return made


def version(record: ports.WorkflowRecord) -> resources_pb2.WorkflowVersion:
    made = resources_pb2.WorkflowVersion(**_common(record, "workflow version"))
    made.create_time.FromDatetime(record.update_time)
    fill(made.definition, record.definition)
    return made


def fault(found: Fault) -> resources_pb2.Fault:
    return resources_pb2.Fault(**found._asdict())


def source_format(given: int) -> Format:
    """YAML is the default."""
    return Format.JSON if given == resources_pb2.Workflow.JSON else Format.YAML


def workspace(record: ports.WorkspaceRecord) -> workspaces_pb2.Workspace:
    limits = in_force(record.tier, record.executions_max, record.queued_max)
    return workspaces_pb2.Workspace(
        **_common(record, "workspace tier create_time update_time"),
        limits=workspaces_pb2.Limits(**limits._asdict()),
        etag=str(record.revision),
    )


def api_key(record: ports.KeyRecord) -> workspaces_pb2.ApiKey:
    fields = "key_id workspace role title create_time expire_time revoke_time"
    return workspaces_pb2.ApiKey(**_common(record, fields))


def identified(record: ports.KeyRecord) -> catalog_pb2.IdentifyKeyResponse:
    """The system key has no public role; its number is 0, which allows nothing."""
    role = 0 if record.role == "SYSTEM" else workspaces_pb2.Role.Value(record.role)
    return catalog_pb2.IdentifyKeyResponse(**_common(record, "key_id workspace expire_time"), role=role)


def _common(record: NamedTuple, names: str) -> dict[str, Any]:
    """The fields that a record and its message share. Messages take enums by name, and None as unset."""
    return {name: getattr(record, name) for name in names.split()}
