"""Translates between protobuf and the runner's own types. Nothing is decided here."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from services.rendering.scope import execution_error, node_without_output
from services.runner.core.failures import Failure
from services.runner.core.job import (
    Deferred,
    Ended,
    Job,
    News,
    NodeOutput,
    Released,
    RunLease,
    Stopped,
    StoredOutput,
    Succeeded,
)
from windlass.coordinator.v1 import sessions_pb2 as pb

_BILLION = 1_000_000_000


def job_of(grant: pb.RunGrant, now_ns: int) -> Job:
    """The job of a grant. What is left of its execution's time counts from `now_ns`. Every step makes one, so what most
    runs do not have is not asked for."""
    timeout, lease_id, epoch = grant.timeout, grant.lease.lease_id, grant.lease.epoch
    workspace = grant.workspace
    seen = _seen_by_templates(grant, RunLease(lease_id, epoch, workspace)) if grant.has_templates else {}
    return Job(
        run_id=lease_id,
        epoch=epoch,
        execution_id=grant.execution_id,
        workspace=workspace,
        workflow=grant.workflow,
        node=grant.node,
        module=grant.module,
        attempt=grant.attempt,
        config=grant.config,
        inputs=grant.inputs,
        has_templates=grant.has_templates,
        timeout_seconds=timeout.seconds + timeout.nanos / _BILLION,
        effect_key=grant.effect_key,
        may_have_run_before=grant.may_have_run_before,
        is_render_only=grant.render_only,
        is_render_all=grant.render_all,
        traceparent=grant.traceparent,
        cursor=grant.cursor,
        iteration=grant.iteration,
        until=grant.until,
        places_max=grant.places_max,
        completion_token=grant.completion_token,
        open_targets=tuple(grant.open_targets),
        deadline_ns=now_ns + grant.execution_left.ToNanoseconds() if grant.HasField("execution_left") else 0,
        **seen,
    )


def _seen_by_templates(grant: pb.RunGrant, lease: RunLease) -> dict[str, Any]:
    """The fields of the job that are empty if it has no templates."""
    has_input = not grant.HasField("execution_input_ref")
    return {
        "input_overrides": grant.input_overrides,
        "execution_input": grant.execution_input if has_input else _stored(grant.execution_input_ref, lease),
        "state": grant.state,
        "outputs": {node: _value_of(output, lease) for node, output in grant.outputs.items()},
        "item": grant.item,
        "without_output": {
            node: node_without_output(other.state, other.error_type, other.error_message)
            for node, other in grant.without_output.items()
        },
        "error": _error_of(grant.execution_error) if grant.HasField("execution_error") else b"",
        "version": grant.workflow_version,
        "create_time": _rfc3339(grant.execution_create_time) if grant.workflow_version else "",
    }


def report_of(ended: Ended, report_id: str) -> pb.RunReport:
    """The report of an outcome. It is filled by attribute, which takes half the time of a constructor's arguments."""
    job, outcome = ended.job, ended.outcome
    report = pb.RunReport()
    head = report.head
    head.report_id, head.lease_id, head.epoch = report_id, job.run_id, job.epoch
    report.inputs_hash, report.config_hash = ended.inputs_hash, ended.config_hash
    if ended.cost_tokens:
        report.cost_tokens = ended.cost_tokens
    _put_time(report.start_time, ended.start_ns)
    _put_time(report.end_time, ended.end_ns)
    if ended.target:
        report.target = ended.target
    match outcome:
        case Succeeded():
            _set_output(report.succeeded.output, outcome.output)
            if outcome.branch:
                report.succeeded.branch = outcome.branch
        case Failure():
            _set_failure(report.failed, outcome)
            report.failed.cursor = ended.cursor
            report.failed.rendered = ended.rendered
        case Released():
            report.released.reason = outcome.reason
            report.released.may_have_begun = outcome.may_have_begun
            report.released.cursor = outcome.cursor
        case Stopped():
            report.stopped.SetInParent()
        case Deferred():
            report.deferred.SetInParent()
    return report


def progress_of(news: News) -> pb.RunProgress:
    """The progress of a run, as it travels with a beat."""
    progress = pb.RunProgress(
        run_id=news.run_id, epoch=news.epoch, fraction=news.fraction, message=news.message, cursor=news.cursor
    )
    _put_time(progress.start_time, news.start_ns)
    return progress


def _put_time(time: Timestamp, ns: int) -> None:
    time.seconds, time.nanos = divmod(ns, _BILLION)


def _value_of(output: pb.Output, lease: RunLease) -> NodeOutput:
    return _stored(output.ref, lease) if output.WhichOneof("value") == "ref" else output.json


def _stored(ref: pb.OutputRef, lease: RunLease) -> StoredOutput:
    return StoredOutput(ref.key, ref.sha256, ref.size_bytes, lease)


def _error_of(error: pb.ExecutionError) -> bytes:
    return execution_error(error.node, error.type, error.message)


def _rfc3339(time: Timestamp) -> str:
    return time.ToDatetime(UTC).isoformat().replace("+00:00", "Z")


def _set_output(output: pb.Output, value: NodeOutput) -> None:
    if isinstance(value, bytes):
        output.json = value
    else:
        output.ref.key, output.ref.sha256, output.ref.size_bytes = value.key, value.sha256, value.size_bytes


def _set_failure(failed: pb.RunReport.Failed, failure: Failure) -> None:
    setattr(failed, "class", pb.ErrorClass.Value(f"ERROR_CLASS_{failure.failure_class}"))
    failed.type = failure.type
    failed.message = failure.message
    if failure.retry_after_seconds is not None:
        failed.retry_after.FromNanoseconds(int(failure.retry_after_seconds * _BILLION))
