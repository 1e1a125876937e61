"""The spans of a sampled execution, written after the commit of what they describe.

    (the dispatcher's grant) ─► coordinator.start, run.lease (one per attempt; run.execute hangs below it),
                                run.wait, run.backoff, coordinator.complete

A run's span has the id that was journalled with its lease, so the runner's spans are its children even if another
coordinator writes the span. All of this is skipped for an execution that is not sampled.
"""

from __future__ import annotations

from services.chassis.process.clock import Clock
from services.chassis.telemetry.tracing import TraceContext, emit_span, parse_traceparent, tracing_is_on
from services.coordinator.app.pending_append import PendingAppend
from services.coordinator.app.trace_segments import segment_of, segment_root
from services.coordinator.core.run_ids import run_id
from services.coordinator.core.state import Execution, ReportFinished, Run
from services.coordinator.core.values import Error, Failure, Instant, RunState

_ENDED = frozenset({RunState.SUCCESS, RunState.FAILED, RunState.DLQ, RunState.CANCELLED})


class Tracing:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def moved(self, pending: PendingAppend) -> None:
        """Writes the spans of a committed append of a sampled execution."""
        if not tracing_is_on():
            return
        trace = pending.owned.trace
        assert trace is not None
        now = self._clock.epoch_ns()
        if pending.from_seq == 0:
            self._start(pending, trace, now)
        last = segment_of(len(pending.execution.runs))
        for segment in range(max(segment_of(pending.runs_before), 0) + 1, last + 1):
            self._roll_over(pending, trace, segment, now)
        for number, ready_time in pending.ready_times.items():
            self._wait(pending, trace, pending.runs[number], ready_time)
        for run in pending.runs.values():
            if run.state in _ENDED and run.end_time:
                self._run(pending, trace, run)
        if any(isinstance(effect, ReportFinished) for effect in pending.effects):
            self._complete(pending, trace, now)

    def _start(self, pending: PendingAppend, trace: TraceContext, now: int) -> None:
        execution = pending.execution
        emit_span(
            "coordinator.start",
            trace.child(),
            parent=trace,
            start_ns=pending.owned.grant_time_ns,
            end_ns=now,
            attributes={**_attributes(execution), "workflow.version": execution.origin.version},
        )

    def _roll_over(self, pending: PendingAppend, trace: TraceContext, segment: int, now: int) -> None:
        """Writes the root of a new segment and a span about it in the segment before. Each links to the other."""
        before, after = segment_root(trace, segment - 1), segment_root(trace, segment)
        attributes = _attributes(pending.execution)
        emit_span(
            "coordinator.rollover",
            before.child(),
            parent=before,
            start_ns=now,
            end_ns=now,
            attributes={**attributes, "segment": segment - 1, "next.trace_id": after.trace_id_hex},
            links=(after,),
        )
        emit_span(
            "coordinator.segment",
            after,
            parent=None,
            start_ns=now,
            end_ns=now,
            attributes={**attributes, "segment": segment, "previous.trace_id": before.trace_id_hex},
            links=(before,),
        )

    def _wait(self, pending: PendingAppend, trace: TraceContext, run: Run, ready_time: Instant) -> None:
        """The wait for a runner with room. Work that was assigned as soon as it was ready has not waited."""
        if run.create_time <= ready_time:
            return
        below = segment_root(trace, segment_of(run.number))
        emit_span(
            "run.wait",
            below.child(),
            parent=below,
            start_ns=ready_time * 1_000,
            end_ns=run.create_time * 1_000,
            attributes=_run_attributes(pending.execution, run),
        )

    def _run(self, pending: PendingAppend, trace: TraceContext, run: Run) -> None:
        own = parse_traceparent(run.traceparent)
        if own is None:
            return
        attributes = {**_run_attributes(pending.execution, run), "runner": run.runner, "state": run.state.value}
        below = segment_root(trace, segment_of(run.number))
        emit_span(
            "run.lease",
            own,
            parent=below,
            start_ns=run.create_time * 1_000,
            end_ns=run.end_time * 1_000,
            attributes=attributes,
            error=_shown(run.error),
        )
        if run.retry_time > run.end_time:
            emit_span(
                "run.backoff",
                below.child(),
                parent=below,
                start_ns=run.end_time * 1_000,
                end_ns=run.retry_time * 1_000,
                attributes=attributes,
            )

    def _complete(self, pending: PendingAppend, trace: TraceContext, now: int) -> None:
        execution = pending.execution
        emit_span(
            "coordinator.complete",
            trace.child(),
            parent=trace,
            start_ns=min(execution.end_time * 1_000, now),
            end_ns=now,
            attributes={**_attributes(execution), "state": execution.state.value, "runs": len(execution.runs)},
            error=_shown(execution.error),
        )


def _attributes(execution: Execution) -> dict[str, str | int]:
    origin = execution.origin
    return {"execution.id": execution.execution_id, "workspace": origin.workspace, "workflow": origin.workflow}


def _run_attributes(execution: Execution, run: Run) -> dict[str, str | int]:
    return {
        **_attributes(execution),
        "run.id": run_id(execution, run.number),
        "task.id": run.work.node.id,
        "attempt": run.attempt,
        "module": run.work.node.module,
    }


def _shown(error: Error | Failure | None) -> str:
    return "" if error is None else f"{error.type}: {error.message}"[:512]
