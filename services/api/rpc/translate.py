"""Translates records to the messages of the public API.

Hazard: all watches of an execution share one record, so no function here changes a record.
"""

from __future__ import annotations

from datetime import datetime

import orjson
from google.protobuf import struct_pb2, timestamp_pb2

from services.api.app import queued
from services.api.app.ports import KeyRecord, WorkflowRecord, WorkspaceRecord
from services.api.app.schema_reader import INPUT_BYTES_MAX
from services.api.app.starts import StartCommand
from services.api.core.tiers import in_force
from services.api.rpc.structs import fill, set_value, to_dict
from windlass.api.v1 import executions_pb2, resources_pb2, workflows_pb2, workspaces_pb2
from windlass.catalog.v1 import catalog_pb2
from windlass.coordinator.v1 import reads_pb2
from windlass.definition.faults import Fault
from windlass.definition.parsing import Format
from windlass.types.v1 import start_pb2


def timestamp(time: datetime) -> timestamp_pb2.Timestamp:
    made = timestamp_pb2.Timestamp()
    made.FromDatetime(time)
    return made


def start_command(request: executions_pb2.StartExecutionRequest) -> StartCommand:
    timeout = request.timeout.seconds * 1_000_000_000 + request.timeout.nanos
    return StartCommand(
        request.workflow,
        request.version,
        to_dict(request.input, "input", INPUT_BYTES_MAX),
        request.request_id,
        request.labels,
        request.priority,
        timeout,
    )


def pending(order: start_pb2.StartOrder, given: struct_pb2.Struct) -> resources_pb2.Execution:
    """The execution that was just queued, from its order."""
    execution = queued.pending(order)
    execution.input.CopyFrom(given)
    return execution


def fill_execution(shown: resources_pb2.Execution, record: reads_pb2.ExecutionRecord) -> None:
    """Fill the answer in place, so that the input and output are not copied."""
    shown.CopyFrom(record.execution)
    fill(shown.input, record.input)
    fill(shown.output, record.output)


def listed(record: reads_pb2.ExecutionRecord) -> resources_pb2.Execution:
    """The execution as lists show it, without input and output."""
    return record.execution


def run(record: reads_pb2.RunRecord) -> resources_pb2.Run:
    made = resources_pb2.Run()
    made.CopyFrom(record.run)
    if record.output:
        set_value(made.output, orjson.loads(record.output))
    return made


def event(record: reads_pb2.EventRecord) -> resources_pb2.Event:
    made = resources_pb2.Event()
    made.CopyFrom(record.event)
    fill(made.details, record.details)
    return made


def workflow(record: WorkflowRecord) -> resources_pb2.Workflow:
    made = resources_pb2.Workflow(
        workflow=record.workflow,
        version=record.version,
        etag=str(record.revision),
        create_time=timestamp(record.create_time),
        update_time=timestamp(record.update_time),
        source=record.source,
        source_format=record.source_format or None,  # type: ignore[arg-type] # by name
    )
    document = orjson.loads(record.definition)
    made.description = document.get("description", "")
    fill(made.definition, record.definition)
    if record.archive_time is not None:
        made.archive_time.FromDatetime(record.archive_time)
    return made


def version(record: WorkflowRecord) -> resources_pb2.WorkflowVersion:
    made = resources_pb2.WorkflowVersion(
        workflow=record.workflow, version=record.version, create_time=timestamp(record.update_time)
    )
    fill(made.definition, record.definition)
    return made


def fault(found: Fault) -> resources_pb2.Fault:
    return resources_pb2.Fault(**found._asdict())


def source_format(given: int) -> Format:
    """YAML is the default."""
    return Format.JSON if given == resources_pb2.Workflow.JSON else Format.YAML


def change(number: int) -> workflows_pb2.ApplyWorkflowResponse.Change.ValueType:
    return workflows_pb2.ApplyWorkflowResponse.Change.ValueType(number)


def workspace(record: WorkspaceRecord) -> workspaces_pb2.Workspace:
    limits = in_force(record.tier, record.executions_max, record.queued_max)
    return workspaces_pb2.Workspace(
        workspace=record.workspace,
        tier=record.tier,  # type: ignore[arg-type] # by number
        limits=workspaces_pb2.Limits(executions_max=limits.executions_max, queued_max=limits.queued_max),
        etag=str(record.revision),
        create_time=timestamp(record.create_time),
        update_time=timestamp(record.update_time),
    )


def api_key(record: KeyRecord) -> workspaces_pb2.ApiKey:
    made = workspaces_pb2.ApiKey(
        key_id=record.key_id,
        workspace=record.workspace,
        role=workspaces_pb2.Role.Value(record.role),
        title=record.title,
        create_time=timestamp(record.create_time),
    )
    if record.expire_time is not None:
        made.expire_time.FromDatetime(record.expire_time)
    if record.revoke_time is not None:
        made.revoke_time.FromDatetime(record.revoke_time)
    return made


def identified(record: KeyRecord) -> catalog_pb2.IdentifyKeyResponse:
    """The system key has no public role; its number is 0, which allows nothing."""
    role = 0 if record.role == "SYSTEM" else workspaces_pb2.Role.Value(record.role)
    made = catalog_pb2.IdentifyKeyResponse(key_id=record.key_id, workspace=record.workspace, role=role)
    if record.expire_time is not None:
        made.expire_time.FromDatetime(record.expire_time)
    return made
