"""The spans of a sampled execution, written after the commit of what they describe.

    (the dispatcher's grant) ─► coordinator.start, run.lease (one per attempt; run.execute hangs below it),
                                run.wait, run.backoff, coordinator.complete

A run's span has the id that was journalled with its lease, so the runner's spans are its children even if another
coordinator writes the span. All of this is skipped for an execution that is not sampled.
"""

from __future__ import annotations

from services.chassis.telemetry.tracing import TraceContext, emit_span, parse_traceparent, tracing_is_on
from services.coordinator.app.pending_append import PendingAppend
from services.coordinator.app.trace_segments import segment_of, segment_root
from services.coordinator.core.run_ids import run_id
from services.coordinator.core.state import Execution, ReportFinished, Run
from services.coordinator.core.values import Error, FinalError, RunState

Attributes = dict[str, str | int]

_ENDED = frozenset({RunState.SUCCESS, RunState.FAILED, RunState.DLQ, RunState.CANCELLED})


def emit_spans(pending: PendingAppend, now_ns: int) -> None:
    """Writes the spans of a committed append, if its execution is sampled."""
    trace, execution = pending.owned.trace, pending.execution
    if trace is None or not tracing_is_on():
        return
    shared = _attributes(execution)
    if pending.from_seq == 0:
        attributes = {**shared, "workflow.version": execution.origin.version}
        _below(trace, "coordinator.start", pending.owned.grant_time_ns, now_ns, attributes)
    last = segment_of(len(execution.runs))
    for segment in range(max(segment_of(pending.runs_before), 0) + 1, last + 1):
        _roll_over(trace, segment, now_ns, shared)
    for number, ready_time in pending.ready_times.items():
        run = pending.runs[number]
        # Work that was assigned as soon as it was ready has not waited for a runner with room.
        if run.create_time > ready_time:
            root = segment_root(trace, segment_of(number))
            _below(root, "run.wait", ready_time * 1_000, run.create_time * 1_000, _run_attributes(execution, run))
    for run in pending.runs.values():
        if run.state in _ENDED and run.end_time:
            _run(execution, trace, run)
    if any(isinstance(effect, ReportFinished) for effect in pending.effects):
        began = min(execution.end_time * 1_000, now_ns)
        attributes = {**shared, "state": execution.state.value, "runs": len(execution.runs)}
        _below(trace, "coordinator.complete", began, now_ns, attributes, _shown(execution.error))


def _below(
    parent: TraceContext, name: str, start_ns: int, end_ns: int, attributes: Attributes, error: str = ""
) -> None:
    emit_span(name, parent.child(), parent=parent, start_ns=start_ns, end_ns=end_ns, attributes=attributes, error=error)


def _roll_over(trace: TraceContext, segment: int, now_ns: int, shared: Attributes) -> None:
    """Writes the root of a new segment and a span about it in the segment before. Each links to the other."""
    before, after = segment_root(trace, segment - 1), segment_root(trace, segment)
    emit_span(
        "coordinator.rollover",
        before.child(),
        parent=before,
        start_ns=now_ns,
        end_ns=now_ns,
        attributes={**shared, "segment": segment - 1, "next.trace_id": after.trace_id_hex},
        links=(after,),
    )
    emit_span(
        "coordinator.segment",
        after,
        parent=None,
        start_ns=now_ns,
        end_ns=now_ns,
        attributes={**shared, "segment": segment, "previous.trace_id": before.trace_id_hex},
        links=(before,),
    )


def _run(execution: Execution, trace: TraceContext, run: Run) -> None:
    own = parse_traceparent(run.traceparent)
    if own is None:
        return
    attributes = {**_run_attributes(execution, run), "runner": run.runner, "state": run.state.value}
    root = segment_root(trace, segment_of(run.number))
    began, ended, error = run.create_time * 1_000, run.end_time * 1_000, _shown(run.error)
    emit_span("run.lease", own, parent=root, start_ns=began, end_ns=ended, attributes=attributes, error=error)
    if run.retry_time > run.end_time:
        _below(root, "run.backoff", ended, run.retry_time * 1_000, attributes)


def _attributes(execution: Execution) -> Attributes:
    origin = execution.origin
    return {"execution.id": execution.execution_id, "workspace": origin.workspace, "workflow": origin.workflow}


def _run_attributes(execution: Execution, run: Run) -> Attributes:
    return {
        **_attributes(execution),
        "run.id": run_id(execution, run.number),
        "task.id": run.work.node.id,
        "attempt": run.attempt,
        "module": run.work.node.module,
    }


def _shown(error: Error | FinalError | None) -> str:
    return "" if error is None else f"{error.type}: {error.message}"[:512]
