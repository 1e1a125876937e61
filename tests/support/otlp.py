"""A collector of our own: a real OTLP/gRPC trace server on a free loopback port that keeps the spans that arrive.

    async with collector() as spans:
        async with running_stack(otlp_endpoint=spans.endpoint) as stack:
            ...
            trace = await spans.trace(execution.trace_id, names=["coordinator.complete"])
            print(trace)                                   # the tree, as text
            assert trace.children_of(trace.one("dispatcher.grant"))

Each service exports its spans twice a second, and services do so in no order. So a test awaits a trace until it has the
spans that the test names, and the parent of each.
"""

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.support.probe import until

ARRIVAL_SECONDS = 20.0
# The tree of an execution of one step, and the names of its spans.
ONE_STEP_TREE = [
    "api.StartExecution",
    "coordinator.complete < dispatcher.grant",
    "coordinator.start < dispatcher.grant",
    "dispatcher.enqueue < api.StartExecution",
    "dispatcher.grant < api.StartExecution",
    "dispatcher.wait < api.StartExecution",
    "run.execute < run.lease",
    "run.lease < dispatcher.grant",
]
EVERY_HOP = {link.partition(" < ")[0] for link in ONE_STEP_TREE}


@dataclass(frozen=True)
class Span:
    """A span as a collector sees it. Ids are in hex, times in ns."""

    name: str
    service: str
    version: str
    instance: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    kind: int
    attributes: dict[str, Any]
    error: str
    is_error: bool


class Trace:
    """The spans of one trace, and the tree that their parent links make."""

    def __init__(self, spans: Collection[Span]) -> None:
        self.spans = sorted(spans, key=lambda span: (span.start, span.end))
        self._by_id = {span.span_id: span for span in self.spans}
        self._children: defaultdict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            self._children[span.parent_id].append(span)

    @property
    def names(self) -> list[str]:
        """The names of the spans in order of their starts."""
        return [span.name for span in self.spans]

    @property
    def roots(self) -> list[Span]:
        return self._children[""]

    @property
    def orphans(self) -> list[Span]:
        """Spans whose parent has not come."""
        return [span for span in self.spans if span.parent_id and span.parent_id not in self._by_id]

    def all(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        found = self.all(name)
        assert len(found) == 1, f"{len(found)} spans {name} in\n{self}"
        return found[0]

    def parent_of(self, span: Span) -> Span | None:
        return self._by_id.get(span.parent_id)

    def children_of(self, span: Span) -> list[Span]:
        return self._children[span.span_id]

    def shape(self) -> list[str]:
        """Each link of the tree once, as `child < parent` by names, sorted. The order of steps does not matter."""
        links = set()
        for span in self.spans:
            parent = self.parent_of(span)
            links.add(span.name if parent is None else f"{span.name} < {parent.name}")
        return sorted(links)

    def __str__(self) -> str:
        return "\n".join(line for root in [*self.roots, *self.orphans] for line in self._lines(root, 0))

    def _lines(self, span: Span, depth: int) -> Iterator[str]:
        took_ms = (span.end - span.start) / 1e6
        mark = f"  ERROR {span.error}" if span.is_error else ""
        yield f"{'  ' * depth}{span.name} [{span.service}] {took_ms:.1f} ms{mark}"
        for child in self.children_of(span):
            yield from self._lines(child, depth + 1)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans that have been exported so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.endpoint = ""

    async def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: Any
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource_spans in request.resource_spans:
            resource = _plain(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans.extend(_span(resource, span) for span in scope_spans.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def trace_ids(self) -> set[str]:
        return {span.trace_id for span in self.spans}

    def now(self, trace_id: str) -> Trace:
        """The spans of the trace that have come so far."""
        return Trace([span for span in self.spans if span.trace_id == trace_id])

    async def trace(self, trace_id: str, *, names: Collection[str] = (), count: int = 1) -> Trace:
        """The trace, once it has `count` spans, one of each of these names, and the parent of each."""

        def whole() -> Trace | None:
            found = self.now(trace_id)
            is_whole = set(names) <= set(found.names) and len(found.spans) >= count
            return found if is_whole and not found.orphans else None

        try:
            return await until(whole, ARRIVAL_SECONDS, f"{sorted(names)} of trace {trace_id}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it has\n{self.now(trace_id)}") from None


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    kept = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    kept.endpoint = f"http://127.0.0.1:{port}"
    await server.start()
    try:
        yield kept
    finally:
        await server.stop(0)


def _span(resource: dict[str, Any], span: trace_pb2.Span) -> Span:
    return Span(
        name=span.name,
        service=resource.get("service.name", ""),
        version=resource.get("service.version", ""),
        instance=resource.get("service.instance.id", ""),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        kind=span.kind,
        attributes=_plain(span.attributes),
        error=span.status.message,
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
