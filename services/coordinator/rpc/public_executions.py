"""Translates rows and events to the public messages (`windlass.api.v1`), which api passes on to clients.

A row is a mapping by column name (core/projection.py). It is read from the table or made from the state in memory; both
are translated in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

import orjson
from google.protobuf.timestamp_pb2 import Timestamp

from services.chassis.grpc.timestamps import put_micros
from services.chassis.telemetry.tracing import parse_traceparent
from services.coordinator.app.ports import Row
from services.coordinator.core.events import (
    CommandRefused,
    Consequences,
    ControlRendered,
    Event,
    ExecutionFinished,
    ReopenedWork,
    RunFailed,
    WorkRendered,
)
from services.coordinator.core.projection import EXECUTION_COLUMNS, execution_row
from services.coordinator.core.state import Execution
from services.coordinator.core.summary import running_nodes, summary
from services.coordinator.core.values import SHOWN_MAX, Origin, WorkKey, rfc3339
from windlass.api.v1 import resources_pb2 as api
from windlass.coordinator.v1 import reads_pb2 as pb

_EXECUTION_STATES: Final = dict(api.Execution.State.items())
_RUN_STATES: Final = dict(api.Run.State.items())
_ERROR_CLASSES: Final = dict(api.Run.ErrorClass.items())
_SPANS: Final = frozenset({"initial_delay", "max_delay", "budget", "duration", "delay"})
# A runner's instance is the secret by which its reports are known to be its own. The work that a stop cancels is left
# out because the summary of the execution names all nodes that were not done.
_HIDDEN: Final = frozenset({"time", "traceparent", "instance_id", "cancelled", "passed_over", "stopped"})
# What was rendered is shown by GetRunInputs alone, and not if the workflow says `recordInputs: false`.
_RENDERED: Final[Mapping[type, frozenset[str]]] = {
    ControlRendered: frozenset({"config", "stored"}),
    WorkRendered: frozenset({"rendered"}),
    RunFailed: frozenset({"rendered"}),
}
_NOTHING: Final[frozenset[str]] = frozenset()
_HASHES: Final = frozenset({"inputs_hash", "config_hash"})


def execution_record(row: Row) -> pb.ExecutionRecord:
    record = pb.ExecutionRecord()
    fill_execution(record, row)
    return record


def past_record(execution: Execution, time: int, imported_execution_id: str) -> pb.ExecutionRecord:
    """The execution as it was when this was its state. `time` is that of its last event."""
    row: dict[str, Any] = dict(zip(EXECUTION_COLUMNS, execution_row(execution), strict=True))
    row["summary"] = summary(execution)._asdict()
    if not execution.is_final:
        row["summary"]["running"] = running_nodes(execution)
    if execution.paused_by is not None:
        row["summary"]["pause"] = execution.paused_by._asdict()
    row["imported_execution_id"] = imported_execution_id
    row["shown_time"] = time
    return execution_record(row)


def fill_execution(record: pb.ExecutionRecord, row: Row) -> None:
    record.workspace, record.input, record.output = row["workspace"], row["input"], row["output"] or b""
    execution = record.execution
    execution.id = row["execution_id"]
    execution.workflow, execution.version = row["workflow"], row["version"]
    execution.state = _EXECUTION_STATES[row["state"]]
    if row["labels"]:
        execution.labels.update(dict(row["labels"]))
    execution.priority = row["priority"]
    execution.trigger.type, execution.trigger.caller = row["trigger_type"], row["caller"]
    execution.parent_execution_id = row["parent_execution_id"]
    execution.origin_execution_id = row["origin_execution_id"]
    # An execution in memory is none.
    execution.imported_execution_id = row.get("imported_execution_id", "")
    put_time(execution.create_time, row["create_time"])
    put_time(execution.start_time, row["start_time"])
    put_time(execution.end_time, row["end_time"])
    if row["deadline_time"]:
        put_time(execution.deadline_time, row["deadline_time"])
    if row["error_type"] is not None:
        error = execution.error
        error.node, error.type, error.message = row["error_node"], row["error_type"], row["error_message"]
    execution.trace_id = _trace_id(row["traceparent"])
    execution.last_seq = row["last_seq"]
    _put_metrics(execution.metrics, row)
    if summary := row["summary"]:
        for name, nodes in summary.items():
            if name == "pause":
                execution.pause.caller, execution.pause.reason = nodes["caller"], nodes["reason"]
                put_time(execution.pause.time, nodes["time"])
            elif nodes:
                getattr(execution.summary, name).extend(nodes)


def _put_metrics(metrics: api.Execution.Metrics, row: Row) -> None:
    metrics.runs, metrics.retries, metrics.cost_tokens = row["runs"], row["retries"], row["cost_tokens"]
    # A row of the table is as it is now.
    end = row["end_time"] or row.get("shown_time") or time.time_ns() // 1_000
    put_micros(metrics.duration, max(0, end - row["start_time"]))
    put_micros(metrics.queued, max(0, row["start_time"] - row["create_time"]))


def run_record(row: Row) -> pb.RunRecord:
    """The row also has `workspace`, `execution_traceparent`, and `lease_time` of its live session."""
    # What a runner has rendered for another one is the output of its run, and is not shown.
    is_rendering = not row["attempt"] and row["instance_id"]
    record = pb.RunRecord(workspace=row["workspace"], output=b"" if is_rendering else row["output"] or b"")
    run = record.run
    run.id = f"{row['execution_id']}.{row['number']}"
    run.execution_id, run.node, run.module = row["execution_id"], row["node"], row["module"]
    run.iteration, run.generation, run.attempt = row["iteration"], row["generation"], row["attempt"]
    run.state = _RUN_STATES[row["state"]]
    run.runner, run.holder_epoch, run.effect_key = row["runner"], row["epoch"], row["effect_key"]
    run.inputs_hash, run.config_hash = (row["inputs_hash"] or b"").hex(), (row["config_hash"] or b"").hex()
    run.cost_tokens = row["cost_tokens"]
    for name in ("create_time", "start_time", "end_time", "heartbeat_time", "retry_time", "lease_time"):
        put_time(getattr(run, name), row[name])
    if row["progress"] or row["progress_message"]:
        run.progress.fraction, run.progress.message = row["progress"], row["progress_message"]
    if row["output_key"] is not None and not is_rendering:
        ref = run.output_ref
        ref.key, ref.sha256, ref.size_bytes = row["output_key"], row["output_sha256"], row["output_bytes"]
    put_error(run.error, row)
    if row["end_time"] and row["start_time"]:
        put_micros(run.duration, max(0, row["end_time"] - row["start_time"]))
    # The run's own trace: every thousand runs begin a new one.
    run.trace_id = _trace_id(row["traceparent"] or row["execution_traceparent"])
    return record


def approval_record(row: Row) -> pb.ApprovalRecord:
    record = pb.ApprovalRecord(workspace=row["workspace"], form=row["form"])
    approval = record.approval
    approval.execution_id, approval.id = row["execution_id"], f"{row['execution_id']}.{row['number']}"
    approval.workflow, approval.node, approval.title = row["workflow"], row["node"], row["title"]
    approval.assignees.extend(row["assignees"])
    approval.required = row["required"]
    approval.state = api.Approval.State.Value(row["state"])
    for name in ("create_time", "expire_time"):
        put_time(getattr(approval, name), row[name])
    for made in row["decisions"]:
        choice = api.Approval.Choice.Value(made["decision"])
        shown = approval.decisions.add(caller=made["caller"], decision=choice, comment=made["comment"])
        put_time(shown.time, made["time"])
        record.decision_forms.append(orjson.dumps(made["form"]))
    return record


def put_error(error: api.Run.Error, row: Row) -> None:
    if row["error_class"] is not None:
        setattr(error, "class", _ERROR_CLASSES[row["error_class"]])
        error.type, error.message = row["error_type"], row["error_message"]
        error.fingerprint = row["error_fingerprint"]


def event_record(event: Event, execution_id: str, seq: int, epoch: int) -> pb.EventRecord:
    record = pb.EventRecord(details=details(event))
    shown = record.event
    shown.seq, shown.epoch, shown.type = seq, epoch, type(event).__name__
    put_time(shown.time, event.time)
    if key := getattr(event, "key", None):
        shown.node = key.node
    if number := getattr(event, "run", 0):
        shown.run_id = f"{execution_id}.{number}"
    record.message_id = getattr(event, "message_id", "")
    if isinstance(event, CommandRefused):
        record.refusal_reason, record.refusal_message = event.reason, event.message
    final = event.state.value if isinstance(event, ExecutionFinished) else "RUNNING"
    shown.state = _EXECUTION_STATES[final]
    return record


def details(event: Event) -> bytes:
    """The fields as a JSON object. Payloads are JSON already and are inserted unchanged."""
    return orjson.dumps(_object(event))


def _object(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rendered = _RENDERED.get(type(value), _NOTHING)
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Origin):
            # Callers see the fields of the origin as fields of the event.
            found |= _object(item)
        elif field.name not in _HIDDEN and field.name not in rendered:
            found[_camel(field.name)] = _plain(field.name, item)
    return found


def _plain(name: str, value: Any) -> Any:
    match value:
        case bytes():
            if name in _HASHES:
                return value.hex()
            return orjson.Fragment(value) if value else None
        case bool() | None:
            return value
        case int() if name.endswith("_time"):
            return rfc3339(value) if value else None
        case int() if name in _SPANS:
            return f"{value / 1e6:.6f}".rstrip("0").rstrip(".") + "s"
        case Enum():
            return value.value
        case WorkKey():
            return value._asdict()
        case Consequences():
            return _shown_consequences(value)
        case tuple() if name == "work":
            return [_reopened(work) for work in value]
        case tuple() if name == "labels":
            return dict(value)
        case tuple() if name == "works":
            return [key.node for key in value]
        case _ if is_dataclass(value):
            return _object(value)
        case _:
            return value


def _reopened(work: ReopenedWork) -> dict[str, Any]:
    return work.key._asdict() | {"overrides": orjson.Fragment(work.overrides or b"null")}


def _shown_consequences(then: Consequences) -> dict[str, list[str]]:
    """The nodes that became ready, began, were skipped or are blocked."""
    names = ("ready", "begun", "skipped", "blocked")
    return {name: [key.node for key in keys] for name in names if (keys := getattr(then, name))}


def put_time(message: Timestamp, instant: int | None) -> None:
    """µs since 1970; 0 and None leave it unset."""
    if instant:
        put_micros(message, min(instant, SHOWN_MAX))


def _trace_id(traceparent: str) -> str:
    trace = parse_traceparent(traceparent)
    return "" if trace is None else trace.trace_id_hex


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
