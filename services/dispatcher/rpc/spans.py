"""Spans of the queue. Only traceparents that may be sampled are parsed."""

from collections.abc import Mapping
from typing import Any

from services.chassis.telemetry.tracing import TraceContext, emit_span, may_be_sampled, parse_traceparent, tracing_is_on
from services.dispatcher.core.items import Claim
from windlass.types.v1 import start_pb2

_NS_PER_US = 1_000


def sampled_context(traceparent: str) -> TraceContext | None:
    if not may_be_sampled(traceparent) or not tracing_is_on():
        return None
    context = parse_traceparent(traceparent)
    return context if context is not None and context.sampled else None


def emit(name: str, parent: TraceContext, start_ns: int, end_ns: int, attributes: Mapping[str, Any]) -> TraceContext:
    """Returns the context of the new span."""
    span = parent.child()
    emit_span(name, span, parent=parent, start_ns=start_ns, end_ns=end_ns, attributes=attributes)
    return span


def emit_grant(order: start_pb2.StartOrder, claim: Claim, now_ns: int) -> str | None:
    """Emit the spans of the wait and of the grant. Returns the traceparent for the coordinator."""
    context = sampled_context(order.traceparent)
    if context is None:
        return None
    attributes = {"execution.id": claim.execution_id, "workspace": claim.workspace, "workflow": order.workflow}
    granted_ns = claim.granted_us * _NS_PER_US
    # An execution that was granted before has not waited since its enqueue.
    if not claim.is_resumed:
        emit("dispatcher.wait", context, claim.enqueue_us * _NS_PER_US, granted_ns, attributes)
    granted = {**attributes, "epoch": claim.epoch, "resumed": claim.is_resumed}
    return emit("dispatcher.grant", context, granted_ns, now_ns, granted).header()
