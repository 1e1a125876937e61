"""What each event looks like in a journal record: a writer and a reader per type, side by side.

Hazards: the two halves of a pair must mean the same; a round trip of every type is tested, and the bytes of old records
in `tests/golden/`. Absent times are 0 in the core and unset in the record. A reader gives what an older writer left out
the meaning it had then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from services.coordinator.core import events as ev
from services.coordinator.core.retry import RetryPolicy
from services.coordinator.core.values import (
    Error,
    ErrorClass,
    ExecutionState,
    Failure,
    FailureReason,
    Instant,
    OutputRef,
    ReleaseReason,
    Span,
    Value,
)
from windlass.journal.v1 import events_pb2 as pb
from windlass.journal.v1.journal_pb2 import Record

Writer = Callable[[Record, Any], None]
Reader = Callable[[Any, Record, Instant], ev.Event]

_SECOND: Final = 1_000_000
_CLASSES: Final = {name: pb.Error.Class.Value(name.value) for name in ErrorClass}
_CLASSES_BACK: Final = {number: name for name, number in _CLASSES.items()}
_REASONS: Final = {name: pb.FailureReason.Value(f"FAILURE_REASON_{name.value}") for name in FailureReason}
_REASONS_BACK: Final = {number: name for name, number in _REASONS.items()}
_RELEASES: Final = {name: pb.RunReleased.Release.Value(name.value) for name in ReleaseReason}
_RELEASES_BACK: Final = {number: name for name, number in _RELEASES.items()}
_FINALS: Final = {
    name: pb.FinalState.Value(f"FINAL_STATE_{name.value}")
    for name in (
        ExecutionState.SUCCESS,
        ExecutionState.FAILED,
        ExecutionState.CANCELLED,
        ExecutionState.TIMEOUT,
    )
}
_FINALS_BACK: Final = {number: name for name, number in _FINALS.items()}


def put_time(target: Timestamp, instant: Instant) -> None:
    target.seconds = instant // _SECOND
    target.nanos = instant % _SECOND * 1000


def micros(time: Timestamp | Duration) -> Instant:
    return time.seconds * _SECOND + time.nanos // 1000


def _span(span: Span) -> Duration:
    return Duration(seconds=span // _SECOND, nanos=span % _SECOND * 1000)


def _reference(ref: OutputRef) -> pb.OutputRef:
    return pb.OutputRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes)


def _reference_back(ref: pb.OutputRef) -> OutputRef:
    return OutputRef(ref.key, ref.sha256, ref.size_bytes)


def _failure(failure: Failure) -> pb.Failure:
    return pb.Failure(node=failure.node, type=failure.type, message=failure.message)


def _failure_back(failure: pb.Failure) -> Failure:
    return Failure(failure.node, failure.type, failure.message)


# The two of every step


def _write_run_succeeded(record: Record, event: ev.RunSucceeded) -> None:
    to = record.run_succeeded
    to.number = event.number
    if isinstance(event.output, OutputRef):
        to.output_ref.CopyFrom(_reference(event.output))
    else:
        to.output = event.output
    if event.branch:
        to.branch = event.branch
    if event.start_time:
        put_time(to.start_time, event.start_time)
    if event.end_time:
        put_time(to.end_time, event.end_time)
    if event.inputs_hash:
        to.inputs_hash = event.inputs_hash
    if event.config_hash:
        to.config_hash = event.config_hash
    if event.cost_tokens:
        to.cost_tokens = event.cost_tokens


def _read_run_succeeded(said: pb.RunSucceeded, record: Record, time: Instant) -> ev.RunSucceeded:
    return ev.RunSucceeded(
        time=time,
        number=said.number,
        output=_reference_back(said.output_ref) if said.HasField("output_ref") else said.output,
        branch=said.branch,
        start_time=micros(said.start_time),
        end_time=micros(said.end_time),
        inputs_hash=said.inputs_hash,
        config_hash=said.config_hash,
        cost_tokens=said.cost_tokens,
    )


def _write_run_leased(record: Record, event: ev.RunLeased) -> None:
    to = record.run_leased
    to.number = event.number
    to.node = event.node
    if event.iteration:
        to.iteration = event.iteration
    to.generation = event.generation
    to.attempt = event.attempt
    to.instance_id = event.instance_id
    to.runner = event.runner
    if event.is_idempotent:
        to.idempotent = True
    if event.traceparent:
        record.traceparent = event.traceparent


def _read_run_leased(said: pb.RunLeased, record: Record, time: Instant) -> ev.RunLeased:
    return ev.RunLeased(
        time=time,
        number=said.number,
        node=said.node,
        iteration=said.iteration,
        generation=said.generation,
        attempt=said.attempt,
        instance_id=said.instance_id,
        runner=said.runner,
        traceparent=record.traceparent,
        is_idempotent=said.idempotent,
    )


# The execution


def _write_execution_started(record: Record, event: ev.ExecutionStarted) -> None:
    to = record.execution_started
    to.holder = event.holder
    to.workspace = event.workspace
    to.workflow = event.workflow
    to.version = event.version
    to.version_id = event.version_id
    to.input = event.input
    for key, value in event.labels:
        to.labels[key] = value
    to.priority = event.priority
    to.trigger_type = event.trigger_type
    to.caller = event.caller
    to.request_id = event.request_id
    to.parent_execution_id = event.parent_execution_id
    put_time(to.create_time, event.create_time)
    put_time(to.grant_time, event.grant_time)
    if event.deadline:
        put_time(to.deadline_time, event.deadline)
    _write_retry(to.retry, event.retry)
    if event.traceparent:
        record.traceparent = event.traceparent


def _write_retry(to: pb.RetryPolicy, policy: RetryPolicy) -> None:
    to.attempts = policy.attempts
    to.initial_delay.CopyFrom(_span(policy.initial_delay))
    to.factor = policy.factor
    to.max_delay.CopyFrom(_span(policy.max_delay))
    to.budget.CopyFrom(_span(policy.budget))


def _read_execution_started(said: pb.ExecutionStarted, record: Record, time: Instant) -> ev.ExecutionStarted:
    retry = said.retry
    return ev.ExecutionStarted(
        time=time,
        epoch=record.epoch,
        holder=said.holder,
        workspace=said.workspace,
        workflow=said.workflow,
        version=said.version,
        version_id=said.version_id,
        input=said.input,
        # Maps have no order of their own.
        labels=tuple(sorted(said.labels.items())),
        priority=said.priority,
        trigger_type=said.trigger_type,
        caller=said.caller,
        request_id=said.request_id,
        parent_execution_id=said.parent_execution_id,
        create_time=micros(said.create_time),
        grant_time=micros(said.grant_time),
        deadline=micros(said.deadline_time),
        traceparent=record.traceparent,
        retry=RetryPolicy(
            retry.attempts,
            micros(retry.initial_delay),
            retry.factor,
            micros(retry.max_delay),
            micros(retry.budget),
        ),
    )


def _write_execution_adopted(record: Record, event: ev.ExecutionAdopted) -> None:
    record.execution_adopted.holder = event.holder


def _read_execution_adopted(said: pb.ExecutionAdopted, record: Record, time: Instant) -> ev.ExecutionAdopted:
    return ev.ExecutionAdopted(time, record.epoch, said.holder)


def _write_stop_ordered(record: Record, event: ev.StopOrdered) -> None:
    to = record.stop_ordered
    to.outcome = _FINALS[event.outcome]
    to.error.CopyFrom(_failure(event.error))
    put_time(to.answer_by_time, event.answer_by)
    to.message_id = event.message_id
    to.caller = event.caller


def _read_stop_ordered(said: pb.StopOrdered, record: Record, time: Instant) -> ev.StopOrdered:
    return ev.StopOrdered(
        time=time,
        outcome=_FINALS_BACK[said.outcome],
        error=_failure_back(said.error),
        answer_by=micros(said.answer_by_time),
        message_id=said.message_id,
        caller=said.caller,
    )


def _write_execution_finished(record: Record, event: ev.ExecutionFinished) -> None:
    to = record.execution_finished
    to.state = _FINALS[event.state]
    if isinstance(event.output, OutputRef):
        to.output.ref.CopyFrom(_reference(event.output))
    elif event.output is not None:
        to.output.json = event.output
    if event.error is not None:
        to.error.CopyFrom(_failure(event.error))
    to.duration.seconds = event.duration // _SECOND
    to.duration.nanos = event.duration % _SECOND * 1000


def _read_execution_finished(
    said: pb.ExecutionFinished, record: Record, time: Instant
) -> ev.ExecutionFinished:
    output: Value | None = None
    if said.HasField("output"):
        output = _reference_back(said.output.ref) if said.output.HasField("ref") else said.output.json
    return ev.ExecutionFinished(
        time=time,
        state=_FINALS_BACK[said.state],
        output=output,
        error=_failure_back(said.error) if said.HasField("error") else None,
        duration=micros(said.duration),
    )


# Runs


def _write_run_started(record: Record, event: ev.RunStarted) -> None:
    record.run_started.number = event.number
    put_time(record.run_started.start_time, event.start_time)


def _read_run_started(said: pb.RunStarted, record: Record, time: Instant) -> ev.RunStarted:
    return ev.RunStarted(time, said.number, micros(said.start_time))


def _write_run_progressed(record: Record, event: ev.RunProgressed) -> None:
    to = record.run_progressed
    to.number = event.number
    to.progress = event.progress
    to.message = event.message
    to.cursor = event.cursor


def _read_run_progressed(said: pb.RunProgressed, record: Record, time: Instant) -> ev.RunProgressed:
    return ev.RunProgressed(time, said.number, said.progress, said.message, said.cursor)


def _write_control_rendered(record: Record, event: ev.ControlRendered) -> None:
    to = record.control_rendered
    to.number = event.number
    to.config = event.config
    if event.start_time:
        put_time(to.start_time, event.start_time)
    if event.end_time:
        put_time(to.end_time, event.end_time)


def _read_control_rendered(said: pb.ControlRendered, record: Record, time: Instant) -> ev.ControlRendered:
    return ev.ControlRendered(time, said.number, said.config, micros(said.start_time), micros(said.end_time))


def _write_run_failed(record: Record, event: ev.RunFailed) -> None:
    to = record.run_failed
    to.number = event.number
    setattr(to.error, "class", _CLASSES[event.error.error_class])
    to.error.type = event.error.type
    to.error.message = event.error.message
    to.fingerprint = event.fingerprint
    if event.start_time:
        put_time(to.start_time, event.start_time)
    if event.end_time:
        put_time(to.end_time, event.end_time)
    to.inputs_hash = event.inputs_hash
    to.config_hash = event.config_hash
    to.cost_tokens = event.cost_tokens
    if event.reason is None:
        put_time(to.retry_time, event.retry_time)
    else:
        to.reason = _REASONS[event.reason]
    to.is_reported = event.is_reported


def _read_run_failed(said: pb.RunFailed, record: Record, time: Instant) -> ev.RunFailed:
    error = said.error
    return ev.RunFailed(
        time=time,
        number=said.number,
        error=Error(_CLASSES_BACK[getattr(error, "class")], error.type, error.message),
        fingerprint=said.fingerprint,
        start_time=micros(said.start_time),
        end_time=micros(said.end_time),
        inputs_hash=said.inputs_hash,
        config_hash=said.config_hash,
        cost_tokens=said.cost_tokens,
        retry_time=micros(said.retry_time),
        reason=_REASONS_BACK.get(said.reason),
        is_reported=said.is_reported,
    )


def _write_run_lost(record: Record, event: ev.RunLost) -> None:
    record.run_lost.number = event.number
    if event.reason is not None:
        record.run_lost.reason = _REASONS[event.reason]


def _read_run_lost(said: pb.RunLost, record: Record, time: Instant) -> ev.RunLost:
    return ev.RunLost(time, said.number, _REASONS_BACK.get(said.reason))


def _write_run_released(record: Record, event: ev.RunReleased) -> None:
    to = record.run_released
    to.number = event.number
    to.release = _RELEASES[event.release]
    to.may_have_begun = event.may_have_begun
    to.is_reported = event.is_reported


def _read_run_released(said: pb.RunReleased, record: Record, time: Instant) -> ev.RunReleased:
    release = _RELEASES_BACK[said.release]
    return ev.RunReleased(time, said.number, release, said.may_have_begun, said.is_reported)


def _write_run_cancelled(record: Record, event: ev.RunCancelled) -> None:
    to = record.run_cancelled
    to.number = event.number
    if event.start_time:
        put_time(to.start_time, event.start_time)
    if event.end_time:
        put_time(to.end_time, event.end_time)
    to.is_reported = event.is_reported


def _read_run_cancelled(said: pb.RunCancelled, record: Record, time: Instant) -> ev.RunCancelled:
    return ev.RunCancelled(
        time, said.number, micros(said.start_time), micros(said.end_time), said.is_reported
    )


def _write_late_report_rejected(record: Record, event: ev.LateReportRejected) -> None:
    to = record.late_report_rejected
    to.number = event.number
    to.epoch = event.epoch
    to.report = event.report


def _read_late_report_rejected(
    said: pb.LateReportRejected, record: Record, time: Instant
) -> ev.LateReportRejected:
    return ev.LateReportRejected(time, said.number, said.epoch, said.report)


# What the core does itself


def _write_backoff_ended(record: Record, event: ev.BackoffEnded) -> None:
    to = record.backoff_ended
    to.node = event.node
    to.iteration = event.iteration
    to.generation = event.generation


def _read_backoff_ended(said: pb.BackoffEnded, record: Record, time: Instant) -> ev.BackoffEnded:
    return ev.BackoffEnded(time, said.node, said.iteration, said.generation)


def _write_join_passed(record: Record, event: ev.JoinPassed) -> None:
    to = record.join_passed
    to.number = event.number
    to.node = event.node
    to.iteration = event.iteration
    to.generation = event.generation


def _read_join_passed(said: pb.JoinPassed, record: Record, time: Instant) -> ev.JoinPassed:
    return ev.JoinPassed(time, said.number, said.node, said.iteration, said.generation)


def _write_sleep_started(record: Record, event: ev.SleepStarted) -> None:
    to = record.sleep_started
    to.number = event.number
    to.node = event.node
    to.iteration = event.iteration
    to.generation = event.generation
    put_time(to.wake_time, event.wake_time)


def _read_sleep_started(said: pb.SleepStarted, record: Record, time: Instant) -> ev.SleepStarted:
    return ev.SleepStarted(
        time, said.number, said.node, said.iteration, said.generation, micros(said.wake_time)
    )


def _write_sleep_ended(record: Record, event: ev.SleepEnded) -> None:
    record.sleep_ended.number = event.number


def _read_sleep_ended(said: pb.SleepEnded, record: Record, time: Instant) -> ev.SleepEnded:
    return ev.SleepEnded(time, said.number)


def _write_nodes_skipped(record: Record, event: ev.NodesSkipped) -> None:
    record.nodes_skipped.first_number = event.first_number
    record.nodes_skipped.nodes.extend(event.nodes)


def _read_nodes_skipped(said: pb.NodesSkipped, record: Record, time: Instant) -> ev.NodesSkipped:
    return ev.NodesSkipped(time, said.first_number, list(said.nodes))


def _write_nodes_blocked(record: Record, event: ev.NodesBlocked) -> None:
    record.nodes_blocked.nodes.extend(event.nodes)


def _read_nodes_blocked(said: pb.NodesBlocked, record: Record, time: Instant) -> ev.NodesBlocked:
    return ev.NodesBlocked(time, list(said.nodes))


def _write_output_requested(record: Record, event: ev.OutputRequested) -> None:
    record.output_requested.SetInParent()


def _read_output_requested(said: pb.OutputRequested, record: Record, time: Instant) -> ev.OutputRequested:
    return ev.OutputRequested(time)


WRITERS: Final[Mapping[type[ev.Event], Writer]] = {
    ev.RunSucceeded: _write_run_succeeded,
    ev.RunLeased: _write_run_leased,
    ev.ExecutionStarted: _write_execution_started,
    ev.ExecutionAdopted: _write_execution_adopted,
    ev.StopOrdered: _write_stop_ordered,
    ev.ExecutionFinished: _write_execution_finished,
    ev.RunStarted: _write_run_started,
    ev.RunProgressed: _write_run_progressed,
    ev.ControlRendered: _write_control_rendered,
    ev.RunFailed: _write_run_failed,
    ev.RunLost: _write_run_lost,
    ev.RunReleased: _write_run_released,
    ev.RunCancelled: _write_run_cancelled,
    ev.LateReportRejected: _write_late_report_rejected,
    ev.BackoffEnded: _write_backoff_ended,
    ev.JoinPassed: _write_join_passed,
    ev.SleepStarted: _write_sleep_started,
    ev.SleepEnded: _write_sleep_ended,
    ev.NodesSkipped: _write_nodes_skipped,
    ev.NodesBlocked: _write_nodes_blocked,
    ev.OutputRequested: _write_output_requested,
}

READERS: Final[Mapping[str, Reader]] = {
    "run_succeeded": _read_run_succeeded,
    "run_leased": _read_run_leased,
    "execution_started": _read_execution_started,
    "execution_adopted": _read_execution_adopted,
    "stop_ordered": _read_stop_ordered,
    "execution_finished": _read_execution_finished,
    "run_started": _read_run_started,
    "run_progressed": _read_run_progressed,
    "control_rendered": _read_control_rendered,
    "run_failed": _read_run_failed,
    "run_lost": _read_run_lost,
    "run_released": _read_run_released,
    "run_cancelled": _read_run_cancelled,
    "late_report_rejected": _read_late_report_rejected,
    "backoff_ended": _read_backoff_ended,
    "join_passed": _read_join_passed,
    "sleep_started": _read_sleep_started,
    "sleep_ended": _read_sleep_ended,
    "nodes_skipped": _read_nodes_skipped,
    "nodes_blocked": _read_nodes_blocked,
    "output_requested": _read_output_requested,
}
