"""Spans, which are recorded when they are over, and the trace context that travels in rows and messages.

The id of a span is needed before it ends, because its children in other processes carry it. No span may be held open
across a queue or a stream. So a context is a plain value with a chosen span id, and `emit_span` records a finished
span under it. An unsampled context costs one comparison. Without an endpoint, OpenTelemetry is not imported.

Hazard: the exporter's exit hook is not installed, because it hangs while the collector is down. Call `flush_tracing`,
which has a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Final, NamedTuple

AttributeValue = str | int | float | bool
TRACEPARENT: Final = "traceparent"
_FLUSHED_POLL_SECONDS: Final = 0.02
_TRACEPARENT_FORM: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
# The system seeds it at import. The ids of spans must be distinct, but not secret.
_random: Final = random.Random()


class TraceContext(NamedTuple):
    trace_id: int
    span_id: int
    sampled: bool

    def header(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"

    def child(self) -> TraceContext:
        """A new span id in the same trace."""
        return TraceContext(self.trace_id, _random.getrandbits(64) or 1, self.sampled)

    @property
    def trace_id_hex(self) -> str:
        return f"{self.trace_id:032x}"


class FinishedSpan(NamedTuple):
    name: str
    context: TraceContext
    parent: TraceContext | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    error: str
    links: Sequence[TraceContext]
    kind: str


def new_trace(sampled: bool) -> TraceContext:
    return TraceContext(_random.getrandbits(128) or 1, _random.getrandbits(64) or 1, sampled)


def may_be_sampled(traceparent: str) -> bool:
    """True when this traceparent is worth parsing. Its last character says so: a sampled context ends in 01. Most are
    not sampled, and parsing costs far more than this.
    """
    return traceparent.endswith("1")


def parse_traceparent(text: str) -> TraceContext | None:
    """Parse the W3C form. None for any other text, which is treated as no context."""
    parts = _TRACEPARENT_FORM.fullmatch(text)
    if parts is None or text.startswith("ff"):
        return None
    trace_id, span_id = int(parts[1], 16), int(parts[2], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(parts[3], 16) & 1))


class ServedCall(NamedTuple):
    """The trace of an RPC that is being served: its own context, its caller's if there is one, and attributes."""

    context: TraceContext
    parent: TraceContext | None
    notes: dict[str, AttributeValue]


_served: ContextVar[ServedCall | None] = ContextVar("served_call", default=None)


def set_served_call(call: ServedCall) -> None:
    """The guard calls this. Each RPC is a task with its own context, so that nothing has to be reset."""
    _served.set(call)


def present_trace() -> TraceContext | None:
    """The context of the RPC that this task serves. None: it is not part of a trace."""
    call = _served.get()
    return None if call is None else call.context


def note_on_span(attributes: Mapping[str, AttributeValue]) -> None:
    """Put these on the span of the RPC that this task serves. The span is recorded when the RPC is over."""
    call = _served.get()
    if call is not None:
        call.notes.update(attributes)


class Sampler:
    """A token bucket: it admits `per_second` traces, and no more."""

    def __init__(self, per_second: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = max(per_second, 1.0)
        self._tokens = self._burst if per_second > 0 else 0.0
        self._monotonic = monotonic
        self._filled = monotonic()

    def take(self) -> bool:
        if self._per_second <= 0:
            return False
        now = self._monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


_emit: Callable[[FinishedSpan], None] | None = None
_flush: Callable[[], object] | None = None
_service_name = ""


def tracing_is_on() -> bool:
    return _emit is not None


def service_name() -> str:
    return _service_name


def emit_span(
    name: str,
    context: TraceContext,
    *,
    parent: TraceContext | None,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, AttributeValue] | None = None,
    error: str = "",
    links: Sequence[TraceContext] = (),
    kind: str = "internal",
) -> None:
    """Record a finished span under the ids of `context`. `kind`: internal, server, client, …"""
    if context.sampled and _emit is not None:
        end_ns = max(start_ns, end_ns)
        _emit(FinishedSpan(name, context, parent, start_ns, end_ns, attributes or {}, error, links, kind))


def setup_tracing(*, service: str, version: str, instance: str, endpoint: str) -> None:
    """Call this once per process, before it serves. `endpoint` is that of an OTLP/gRPC collector, or "" for none."""
    global _emit, _flush, _service_name
    _service_name, _emit, _flush = service, None, None
    if not endpoint:
        return
    # Imported here, because OpenTelemetry costs memory.
    from services.chassis.telemetry.otlp import open_pipeline

    _emit, _flush = open_pipeline(service=service, version=version, instance=instance, endpoint=endpoint)


async def flush_tracing(seconds: float = 2.0) -> bool:
    """Send the spans that are still held, for at most `seconds`. False: the time was over."""
    if _flush is None:
        return True
    # A daemon thread, so that an exporter that hangs does not keep the process alive.
    thread = threading.Thread(target=_flush, name="flush-spans", daemon=True)
    thread.start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            # This does not use `to_thread`, whose threads may all be held by modules.
            while thread.is_alive():  # noqa: ASYNC110 - a thread sets no event
                await asyncio.sleep(_FLUSHED_POLL_SECONDS)
    return not thread.is_alive()
