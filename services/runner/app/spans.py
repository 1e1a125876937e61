"""The span of a run, `run.execute`. Its parent is the span that the grant names."""

from __future__ import annotations

from services.chassis.telemetry.tracing import TraceContext, emit_span, parse_traceparent
from services.runner.core.job import Job


def span_of(job: Job) -> TraceContext | None:
    """A new span for the run; None when its execution is not sampled."""
    if not job.traceparent.endswith("1"):
        return None
    parent = parse_traceparent(job.traceparent)
    return parent.child() if parent is not None and parent.sampled else None


def emit_run(span: TraceContext, job: Job, start_ns: int, end_ns: int, error: str) -> None:
    """Record the span of a run that is over."""
    emit_span(
        "run.execute",
        span,
        parent=parse_traceparent(job.traceparent),
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={
            "run.id": job.run_id,
            "execution.id": job.execution_id,
            "task.id": job.node,
            "attempt": job.attempt,
            "module": job.module,
            "workspace": job.workspace,
            "workflow": job.workflow,
        },
        error=error,
    )
