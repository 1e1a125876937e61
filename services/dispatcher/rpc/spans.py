"""Spans of the queue. The last character of a traceparent tells whether it is sampled; others are not parsed."""

from services.chassis.telemetry.tracing import TraceContext, emit_span, parse_traceparent, tracing_is_on
from services.dispatcher.core.items import Claim
from windlass.types.v1 import start_pb2

_NS_PER_US = 1_000


def sampled_context(traceparent: str) -> TraceContext | None:
    if not traceparent.endswith("1") or not tracing_is_on():
        return None
    context = parse_traceparent(traceparent)
    return context if context is not None and context.sampled else None


def emit_enqueue(context: TraceContext, execution_id: str, outcome: str, start_ns: int, end_ns: int) -> None:
    emit_span(
        "dispatcher.enqueue",
        context.child(),
        parent=context,
        start_ns=start_ns,
        end_ns=end_ns,
        attributes={"execution.id": execution_id, "outcome": outcome},
    )


def emit_grant(order: start_pb2.StartOrder, claim: Claim, now_ns: int) -> str | None:
    """Emit the spans of the wait and of the grant. Returns the traceparent for the coordinator."""
    context = sampled_context(order.traceparent)
    if context is None:
        return None
    attributes = {"execution.id": claim.execution_id, "workspace": claim.workspace, "workflow": order.workflow}
    granted_ns = claim.granted_us * _NS_PER_US
    # An execution that was granted before has not waited since its enqueue.
    if not claim.is_resumed:
        emit_span(
            "dispatcher.wait",
            context.child(),
            parent=context,
            start_ns=claim.enqueue_us * _NS_PER_US,
            end_ns=granted_ns,
            attributes=attributes,
        )
    grant = context.child()
    emit_span(
        "dispatcher.grant",
        grant,
        parent=context,
        start_ns=granted_ns,
        end_ns=now_ns,
        attributes={**attributes, "epoch": claim.epoch, "resumed": claim.is_resumed},
    )
    return grant.header()
