"""The pipeline to an OTLP/gRPC collector. It sends batches from its own thread, and drops spans when its queue is full.

We choose span ids ourselves (they are sent to peers before the span ends), so no Tracer is used: OpenTelemetry's batch
processor gets finished spans. Only tracing.py imports this module, and only when an endpoint is configured.
When the collector is away, spans are lost, but no work waits: the exporter retries on its own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from services.chassis.process.naming import PRODUCT

if TYPE_CHECKING:
    from services.chassis.telemetry.tracing import FinishedSpan, TraceContext

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {kind.name.lower(): kind for kind in SpanKind}
_UNSET = Status(StatusCode.UNSET)
_SPANS_HELD_MAX = 8_192
_EXPORT_SECONDS = 3.0


def open_pipeline(
    *, service: str, version: str, instance: str, endpoint: str
) -> tuple[Callable[[FinishedSpan], None], Callable[[], object]]:
    """Returns (emit, flush)."""
    # OpenTelemetry's logger would report a collector that is down every few seconds.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_EXPORT_SECONDS
    )
    processor = BatchSpanProcessor(
        exporter, max_queue_size=_SPANS_HELD_MAX, schedule_delay_millis=500, max_export_batch_size=512
    )
    resource = Resource(
        {
            "service.namespace": PRODUCT,
            "service.name": service,
            "service.version": version,
            "service.instance.id": instance,
        }
    )
    scope = InstrumentationScope(PRODUCT, version)

    def emit(span: FinishedSpan) -> None:
        readable = ReadableSpan(
            span.name,
            context=_span_context(span.context, is_remote=False),
            parent=None if span.parent is None else _span_context(span.parent, is_remote=True),
            resource=resource,
            attributes=dict(span.attributes),
            links=[Link(_span_context(link, is_remote=True)) for link in span.links],
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else _UNSET,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )
        processor.on_end(readable)

    return emit, processor.force_flush


def _span_context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote, _SAMPLED)
