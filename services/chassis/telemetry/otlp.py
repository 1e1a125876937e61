"""The pipeline to an OTLP/gRPC collector. It sends batches from its own thread, and drops spans when its queue is full.

We choose span ids ourselves (they are sent to peers before the span ends), so no Tracer is used: OpenTelemetry's batch
processor gets finished spans. Only tracing.py imports this module, and only when an endpoint is configured.
When the collector is away, spans are lost, but no work waits: the exporter retries on its own thread.

The encoder is ours. In an execution that is traced, every run has spans, and OpenTelemetry's encoder takes 45 µs of CPU
for each: nearly half of what a coordinator needed for the whole run. This one takes 14 µs for the same bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
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
_PB_KINDS = {kind: pb.Span.SpanKind.Value(f"SPAN_KIND_{kind.name}") for kind in SpanKind}
_FLAGS = pb.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_FLAGS_BELOW_REMOTE = _FLAGS | pb.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_SPANS_HELD_MAX = 8_192
_EXPORT_SECONDS = 3.0


def open_pipeline(
    *, service: str, version: str, instance: str, endpoint: str
) -> tuple[Callable[[FinishedSpan], None], Callable[[], object]]:
    """Returns (emit, flush)."""
    # OpenTelemetry's logger would report a collector that is down every few seconds.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = SpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=_EXPORT_SECONDS)
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
        processor.on_end(readable(span, resource, scope))

    return emit, processor.force_flush


def readable(span: FinishedSpan, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    return ReadableSpan(
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


class SpanExporter(OTLPSpanExporter):
    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return encoded(data)


def encoded(spans: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
    """As `encode_spans` does, for the spans of `open_pipeline`, which have one resource and one scope."""
    request = encode_spans(spans[:1])
    for resource in request.resource_spans:
        (scope,) = resource.scope_spans
        for span in spans[1:]:
            if span.links:
                scope.spans.extend(encode_spans([span]).resource_spans[0].scope_spans[0].spans)
            else:
                _put(span, scope.spans.add())
    return request


def _put(span: ReadableSpan, into: pb.Span) -> None:
    # They are there, which the types of a ReadableSpan do not say.
    assert span.context is not None
    assert span.attributes is not None
    assert span.start_time is not None
    assert span.end_time is not None
    into.trace_id = span.context.trace_id.to_bytes(16)
    into.span_id = span.context.span_id.to_bytes(8)
    into.name = span.name
    into.kind = _PB_KINDS[span.kind]
    into.start_time_unix_nano = span.start_time
    into.end_time_unix_nano = span.end_time
    into.flags = _FLAGS
    if span.parent is not None:
        into.parent_span_id = span.parent.span_id.to_bytes(8)
        if span.parent.is_remote:
            into.flags = _FLAGS_BELOW_REMOTE
    add = into.attributes.add
    for key, value in span.attributes.items():
        place = add(key=key).value
        if isinstance(value, str):
            place.string_value = value
        elif isinstance(value, bool):
            place.bool_value = value
        elif isinstance(value, int):
            place.int_value = value
        else:
            assert isinstance(value, float)
            place.double_value = value
    into.status.SetInParent()
    if span.status.status_code is StatusCode.ERROR:
        into.status.code = pb.Status.STATUS_CODE_ERROR
        into.status.message = span.status.description or ""


def _span_context(context: TraceContext, *, is_remote: bool) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote, _SAMPLED)
