"""Reports how each run ends: to the holder, to the metrics, and as the span of the run, `run.execute`.

The parent of that span is the one that the grant names."""

from __future__ import annotations

from services.chassis.process.clock import Clock
from services.chassis.telemetry.logs import logger
from services.chassis.telemetry.metrics import counter
from services.chassis.telemetry.tracing import (
    AttributeValue,
    TraceContext,
    emit_span,
    may_be_sampled,
    parse_traceparent,
)
from services.runner.app.attempt import Attempt, failure_of, rendered_of
from services.runner.app.ports import Holder
from services.runner.core.failures import Failure, FailureClass
from services.runner.core.job import AttemptOutcome, Deferred, Ended, Job, Released, Stopped, Succeeded
from services.runner.core.untrusted import clamp_cost, clamp_text
from windlass.sdk import ModuleError

log = logger(__name__)

_runs_ended = counter("runner_runs_ended_total", "Runs reported, by outcome.", ["outcome"])
_KINDS = (Succeeded, Failure, Released, Stopped, Deferred)
_ended = {kind: _runs_ended.labels(kind.__name__.lower()) for kind in _KINDS}


class RunReports:
    def __init__(self, holder: Holder, clock: Clock) -> None:
        self._holder = holder
        self._clock = clock

    def released(
        self, job: Job, reason: str, start_ns: int = 0, *, may_have_begun: bool = False, cursor: bytes = b""
    ) -> None:
        """The run is handed back. `start_ns` is 0 when it had no task."""
        now_ns = self._clock.epoch_ns()
        self._report(Ended(job, Released(reason, may_have_begun, cursor), start_ns or now_ns, now_ns))

    def stopped(self, job: Job, start_ns: int) -> None:
        self._report(Ended(job, Stopped(), start_ns, self._clock.epoch_ns()))

    def ended(
        self, job: Job, outcome: AttemptOutcome, start_ns: int, attempt: Attempt | None, span: TraceContext | None
    ) -> None:
        """The run has an outcome. `attempt` is None when it could not be prepared."""
        end_ns = self._clock.epoch_ns()
        if attempt is None:
            ended = Ended(job, outcome, start_ns, end_ns)
        else:
            hashes, context = (attempt.inputs_hash, attempt.config_hash), attempt.context
            cursor = context.told_cursor if isinstance(outcome, Failure) else b""
            cost_tokens = clamp_cost(context.cost_tokens)
            rendered = rendered_of(attempt) if isinstance(outcome, Failure) and job.has_templates else b""
            ended = Ended(job, outcome, start_ns, end_ns, *hashes, cost_tokens, cursor, context.called, rendered)
        try:
            self._report(ended)
        except Exception as error:  # noqa: BLE001 - an outcome that cannot be encoded must not leave the run unreported
            outcome = failure_around(job, error)
            self._report(Ended(job, outcome, start_ns, end_ns))
        if span is not None:
            error_text = f"{outcome.type}: {outcome.message}" if isinstance(outcome, Failure) else ""
            emit_run(span, job, start_ns, end_ns, error_text)

    def _report(self, ended: Ended) -> None:
        self._holder.report(ended)
        _ended[type(ended.outcome)].inc()


def span_of(job: Job) -> TraceContext | None:
    """A new span for the run; None when its execution is not sampled."""
    parent = parse_traceparent(job.traceparent) if may_be_sampled(job.traceparent) else None
    return None if parent is None else parent.child()


def emit_run(span: TraceContext, job: Job, start_ns: int, end_ns: int, error: str) -> None:
    """Record the span of a run that is over."""
    attributes: dict[str, AttributeValue] = {
        "run.id": job.run_id,
        "execution.id": job.execution_id,
        "task.id": job.node,
        "attempt": job.attempt,
        "module": job.module,
        "workspace": job.workspace,
        "workflow": job.workflow,
    }
    parent = parse_traceparent(job.traceparent)
    emit_span("run.execute", span, parent=parent, start_ns=start_ns, end_ns=end_ns, attributes=attributes, error=error)


def failure_around(job: Job, error: BaseException) -> Failure:
    """Classify what was raised around a module.

    A ModuleError has its class. A module may also raise what is no Exception (`sys.exit`, a cancellation that nobody
    asked for). Everything else is a bug of the runner."""
    if isinstance(error, ModuleError) or not isinstance(error, Exception):
        return failure_of(error)
    log.error("attempt broke", run_id=job.run_id, module=job.module, exc_info=error)
    return Failure(FailureClass.TRANSIENT, "INTERNAL", f"the runner failed at it: {clamp_text(type(error).__name__)}")
